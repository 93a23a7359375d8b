"""An image's bytes, be it a whole file or a byte range of a tar shard or of another file of many images.

An image in a shard has a path, too: ``/data/train-000000.tar//0001.jpg``. No path of a file has ``//`` in
it, so the shard ends there and the name inside begins. CIFAR's images are bare pixels in their file; they are
given as what a decoder reads, as PPM.
"""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np

from rankless.data.images.image_file import MOST_BYTES, UnreadableImage, too_large
from rankless.data.index.annotations import Annotations
from rankless.files import reading

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
    """The file on the disk: the shard of an image in one, or the path itself."""
    cut = path.find(_INSIDE, 1)  # POSIX lets a path begin with two
    return path if cut < 0 else path[:cut]


def open_source(annotations: Annotations, index: int) -> str | io.BytesIO:
    """Image ``index`` for :func:`rankless.data.images.image_file.read`: its file, or its bytes in a shard.

    Raises:
        UnreadableImage: the shard is missing, or shorter than it was.
    """
    path = annotations.path(index)
    if not len(annotations.byte_ranges):
        return path
    return io.BytesIO(content(annotations, index))


def content(annotations: Annotations, index: int) -> bytes:
    """The bytes of image ``index`` as they lie on the disk; bare pixels as PPM.

    Raises:
        UnreadableImage: the file is missing, or a shard is shorter than it was.
    """
    path = annotations.path(index)
    try:
        if not len(annotations.byte_ranges):
            return reading.read_bytes(path, MOST_BYTES)
        offset, length = annotations.byte_ranges[index].tolist()
        if length > MOST_BYTES:
            raise UnreadableImage(path, too_large(length))
        with reading.opened(file_of(path)) as shard:
            shard.seek(offset)
            data = shard.read(length)
            while len(data) < length and (more := shard.read(length - len(data))):
                data += more
    except OSError as error:
        raise UnreadableImage(path, error.strerror or str(error)) from error
    if len(data) < length:
        raise UnreadableImage(path, f"its shard ends after {len(data)} of its {length} bytes")
    if path.endswith(CIFAR_ENDING) and not file_of(path).endswith(".tar"):
        return _HEADER + np.frombuffer(data, np.uint8).reshape(3, -1).T.tobytes()
    return data


class Window(io.RawIOBase):
    """A byte range of an opened file as a file: a decoder reads no more of it than it needs.

    Args:
        file: its descriptor; stays open.
        offset, length: of the range in bytes.
    """

    def __init__(self, file: int, offset: int, length: int) -> None:
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
        data = os.pread(self._file, wanted, self._offset + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
