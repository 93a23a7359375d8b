"""Read the bytes of an image from its own file or from a byte range of a tar shard or another container.

An image in a shard has a path such as ``/data/train-000000.tar//0001.jpg``. The separator ``//`` does not
occur in file paths. The URL of a remote shard is followed by a tag for its content, as in
``https://host/data/train-000000.tar#3f…//0001.jpg``. CIFAR files contain raw pixels, which are converted to
PPM for the decoder.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rankless.data.images.image_file import MOST_BYTES, UnreadableImage, too_large
from rankless.data.index.annotations import Annotations
from rankless.files import range_cache, reading
from rankless.files.remote import RemoteFile, is_remote

CIFAR_SIDE = 32
CIFAR_BYTES = 3 * CIFAR_SIDE**2
CIFAR_ENDING = ".cifar.ppm"  # suffix of the names of images that are stored as three planes of raw pixels
_HEADER = f"P6 {CIFAR_SIDE} {CIFAR_SIDE} 255\n".encode()
_INSIDE = "//"
COPY, ORIGINAL = "images-", ".of"
"""Prefix of files with copied images, and suffix of the file that records their origin."""


def path_in(shard: str, member: str) -> str:
    """Return the path of an image inside a shard."""
    return f"{shard}{_INSIDE}{member.lstrip('/').replace(_INSIDE, '/')}"


def file_of(path: str) -> str:
    """Return the path or URL of the shard that contains an image, or ``path`` if it is not in a shard."""
    first = path.index("://") + len("://") if is_remote(path) else 1  # POSIX allows a leading //
    cut = path.find(_INSIDE, first)
    return path if cut < 0 else path[:cut]


def original(file: str) -> str:
    """Return the file from which the images in ``file`` were copied, or ``file`` if they were not."""
    if not os.path.basename(file).startswith(COPY):  # noqa: PTH119 - may be a URL
        return file
    try:
        return os.fsdecode(reading.read_bytes(f"{file}{ORIGINAL}", reading.POINTER))
    except OSError:
        return file


def content(annotations: Annotations, index: int) -> bytes:
    """Return the encoded bytes of an image, with raw pixels converted to PPM."""
    path = annotations.path(index)
    try:
        if not len(annotations.byte_ranges):
            return reading.read_bytes(path, MOST_BYTES)
        offset, length = annotations.byte_ranges[index].tolist()
        if length > MOST_BYTES:
            raise UnreadableImage(path, too_large(length))
        data = _part(file_of(path), length, offset)
    except OSError as error:
        raise UnreadableImage(path, error.strerror or str(error)) from error
    if len(data) < length:
        raise UnreadableImage(path, f"the shard ends after {len(data)} of the image's {length} bytes")
    if path.endswith(CIFAR_ENDING) and not file_of(path).endswith(".tar"):
        return _HEADER + np.frombuffer(data, np.uint8).reshape(3, -1).T.tobytes()
    return data


def _part(file: str, length: int, offset: int) -> bytes:
    if not is_remote(file):
        with reading.opened(file) as opened:
            return LocalFile(opened.fileno()).pread(length, offset)
    key, cache = f"{file} {offset} {length}", range_cache.user_cache()
    data = cache.get(key)
    if data is None:
        data = _remote(os.getpid(), file).range(length, offset)
        if len(data) == length:
            cache.put(key, data)
    return data


@functools.lru_cache(maxsize=10_000)
def _remote(process: int, url: str) -> RemoteFile:
    return RemoteFile(url)


class Ranged(Protocol):
    """A local or remote file from which byte ranges can be read."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    def pread(self, length: int, offset: int) -> bytes:
        """Return ``length`` bytes from ``offset``, or fewer bytes at the end of the file."""


@dataclass(frozen=True)
class LocalFile:
    """An open local file, given by its descriptor."""

    file: int

    @property
    def size(self) -> int:
        return os.fstat(self.file).st_size

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self.file, length, offset)
        while len(data) < length and (more := os.pread(self.file, length - len(data), offset + len(data))):
            data += more
        return data


@contextmanager
def opened(path: str) -> Iterator[Ranged]:
    """Open a local or remote shard as a context manager."""
    if is_remote(path):
        yield RemoteFile(path)
        return
    with reading.opened(path) as file:
        yield LocalFile(file.fileno())


class Window(io.RawIOBase):
    """A file object for a byte range of an open file, so that a decoder reads only what it needs."""

    def __init__(self, file: Ranged, offset: int, length: int) -> None:
        self._file, self._offset, self._length, self._at = file, offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = max(min(len(buffer), self._length - self._at), 0)
        data = self._file.pread(wanted, self._offset + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
