"""An image's bytes, be it a whole file or a byte range of a tar shard or of another file of many images.

An image in a shard has a path, too: ``/data/train-000000.tar//0001.jpg``. No path of a file has ``//`` in
it, so the shard ends there and the name inside begins. A shard on another machine has an address, with a tag
of its content: ``https://host/data/train-000000.tar#3f…//0001.jpg``. CIFAR's images are bare pixels in their
file; they are given as what a decoder reads, as PPM.
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
CIFAR_ENDING = ".cifar.ppm"
"""Of the name of an image whose byte range, outside of a shard, is its three planes."""
_HEADER = f"P6 {CIFAR_SIDE} {CIFAR_SIDE} 255\n".encode()
_INSIDE = "//"


def path_in(shard: str, member: str) -> str:
    """The path of an image that lies in a shard."""
    return f"{shard}{_INSIDE}{member.lstrip('/').replace(_INSIDE, '/')}"


def file_of(path: str) -> str:
    """The file on the disk, or the address: the shard of an image in one, or the path itself."""
    first = path.index("://") + len("://") if is_remote(path) else 1  # POSIX lets a path begin with two
    cut = path.find(_INSIDE, first)
    return path if cut < 0 else path[:cut]


def open_source(annotations: Annotations, index: int) -> str | io.BytesIO:
    """Image ``index`` for :func:`rankless.data.images.image_file.read`: its file, or its bytes in a shard."""
    path = annotations.path(index)
    if not len(annotations.byte_ranges):
        return path
    return io.BytesIO(content(annotations, index))


def content(annotations: Annotations, index: int) -> bytes:
    """The bytes of image ``index`` as they lie on the disk; bare pixels as PPM."""
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
        raise UnreadableImage(path, f"its shard ends after {len(data)} of its {length} bytes")
    if path.endswith(CIFAR_ENDING) and not file_of(path).endswith(".tar"):
        return _HEADER + np.frombuffer(data, np.uint8).reshape(3, -1).T.tobytes()
    return data


def _part(file: str, length: int, offset: int) -> bytes:
    """Return a part of a shard, through the user's cache if it is remote."""
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
    """A file of which ranges are read, here or on another machine."""

    @property
    def size(self) -> int:
        """Bytes."""

    def pread(self, length: int, offset: int) -> bytes:
        """Return this many bytes from an offset; fewer only at the end of the file."""


@dataclass(frozen=True)
class LocalFile:
    """An opened file of this machine.

    Attributes:
        file: its descriptor.
    """

    file: int

    @property
    def size(self) -> int:
        """Bytes."""
        return os.fstat(self.file).st_size

    def pread(self, length: int, offset: int) -> bytes:
        """See :class:`Ranged`."""
        data = os.pread(self.file, length, offset)
        while len(data) < length and (more := os.pread(self.file, length - len(data), offset + len(data))):
            data += more
        return data


@contextmanager
def opened(path: str) -> Iterator[Ranged]:
    """Inside, a shard as what ranges are read of."""
    if is_remote(path):
        yield RemoteFile(path)
        return
    with reading.opened(path) as file:
        yield LocalFile(file.fileno())


class Window(io.RawIOBase):
    """A byte range of an opened file as a file: a decoder reads no more of it than it needs."""

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
