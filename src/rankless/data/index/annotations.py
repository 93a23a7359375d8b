"""What is annotated on the images of one split: flat arrays, whatever format they came from.

Arrays are memory-mapped from one file, so every rank and loader process of a machine shares one copy and
opening costs the same for a thousand images and for a million.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rankless.data.index.findings import Findings
from rankless.errors import UserError
from rankless.files.cache_folder import hold

DIFFICULT, CROWD = 1, 2
"""Bits of ``flags``: neither is trained on. Scores ignore a difficult box, and what lies in a crowd."""

_MAGIC = b"rankless arrays\0"
_START = len(_MAGIC) + 8
_ALIGNMENT = 64
_FILE = "annotations"
_ARRAYS = {
    "path_bytes": np.uint8,
    "path_ends": np.int64,
    "byte_ranges": np.int64,
    "sizes": np.int32,
    "offsets": np.int64,
    "boxes": np.float32,
    "labels": np.int32,
    "flags": np.uint8,
    "areas": np.float32,
}


@dataclass(frozen=True)
class Annotations:
    """One split. Pickles as the name of its folder once it lies in one.

    Attributes:
        class_names: a label is a position in this list.
        format: the name of the format it was read from.
        path_bytes, path_ends: the image files' names, one after another as the file system has them, and
            where each ends; (bytes,), (N,). See :meth:`path`.
        byte_ranges: offset and length of each image in its file, where that is a tar shard; (N, 2), or (0, 2)
            where every image is a file. See :mod:`rankless.data.index.byte_ranges`.
        sizes: height and width of each upright image in pixels; 0, 0 where it cannot be read; (N, 2).
        offsets: the boxes of image i are ``offsets[i] : offsets[i + 1]``; (N + 1,).
        boxes: xyxy in pixels of the upright image and inside it, (T, 4). Of classification (0, 4).
        labels: a class for each box, (T,). Of classification one for each image.
        flags: :data:`DIFFICULT`, :data:`CROWD`, (T,).
        areas: of the object in pixels, where the format says more than its box; else NaN; (T,).
        findings: what was wrong.
        about: further sentences on how the data was read.
        folder: where the arrays lie; None in memory.
    """

    class_names: tuple[str, ...]
    format: str
    path_bytes: NDArray[np.uint8]
    path_ends: NDArray[np.int64]
    byte_ranges: NDArray[np.int64]
    sizes: NDArray[np.int32]
    offsets: NDArray[np.int64]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int32]
    flags: NDArray[np.uint8]
    areas: NDArray[np.float32]
    findings: Findings = field(default_factory=Findings)
    about: tuple[str, ...] = ()
    folder: str | None = None

    def __len__(self) -> int:
        """How many images."""
        return len(self.path_ends)

    @property
    def has_boxes(self) -> bool:
        """Whether these are boxes, or else one class for each image."""
        return len(self.boxes) == len(self.labels)

    @property
    def notes(self) -> tuple[str, ...]:
        """How the data was read and what was wrong, as sentences with counts."""
        return (*self.about, *self.findings.notes())

    def path(self, index: int) -> str:
        """The file of image ``index``; in a shard ``train-000000.tar//0001.jpg``."""
        first = int(self.path_ends[index - 1]) if index else 0
        return os.fsdecode(self.path_bytes[first : int(self.path_ends[index])].tobytes())

    def paths(self) -> list[str]:
        """The files of all images; a list of a million strings takes some 150 MB."""
        whole, ends = self.path_bytes.tobytes(), self.path_ends.tolist()
        return [os.fsdecode(whole[a:b]) for a, b in zip([0, *ends], ends, strict=False)]

    def rows(self, index: int) -> slice:
        """The rows of image ``index`` in ``boxes``, ``labels``, ``flags`` and ``areas``."""
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def digest(self) -> str:
        """Of classes, sizes and all that is annotated, in its order; not of where the files lie."""
        made = hashlib.blake2b("\n".join(self.class_names).encode(errors="surrogateescape"), digest_size=16)
        for array in (self.sizes, self.offsets, self.boxes, self.labels, self.flags):
            made.update(array.tobytes())
        return made.hexdigest()

    def save(self, folder: Path) -> None:
        """Write everything into ``folder``, which must exist and be empty."""
        about = {
            "class_names": self.class_names,
            "format": self.format,
            "about": self.about,
            "findings": self.findings.as_json(),
        }
        _save_arrays(folder / _FILE, {name: getattr(self, name) for name in _ARRAYS}, about)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Annotations:
        """Map what :meth:`save` wrote; nothing is read until it is asked for.

        The folder is not removed by another process while this one has it.

        Raises:
            UserError: it is gone.
            OSError, ValueError, KeyError, TypeError: it is not whole.
        """
        path = Path(folder)
        try:
            arrays, about = _load_arrays(path / _FILE, _ARRAYS)
        except FileNotFoundError as error:
            raise _gone(path) from error
        made = cls(
            class_names=tuple(about["class_names"]),
            format=about["format"],
            about=tuple(about["about"]),
            findings=Findings.from_json(about["findings"]),
            folder=os.fspath(path),
            **arrays,
        )
        hold(path, made)
        return made

    def __reduce__(self) -> Any:
        if self.folder is None:
            return super().__reduce__()
        if not Path(self.folder, _FILE).exists():  # raised here, where its message is shown
            raise _gone(Path(self.folder))
        return Annotations.load, (self.folder,)


def _gone(folder: Path) -> UserError:
    return UserError(
        f"{folder}: the cached annotations are gone, expected them to stay while the program runs (see "
        "RANKLESS_CACHE). Start again: the data is read again."
    )


def flat_paths(paths: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """``path_bytes`` and ``path_ends`` of a list of files."""
    encoded = [os.fsencode(path) for path in paths]
    ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def _save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], about: object) -> None:
    """Write ``arrays`` and ``about``, which is anything that JSON holds, to one file.

    One file is mapped once, and flushed to the disk once. It holds a magic number, the length of a JSON
    header, the header, and the arrays, each on a 64-byte boundary.
    """
    header = json.dumps(
        {"about": about, "arrays": {name: [each.dtype.str, each.shape] for name, each in arrays.items()}}
    ).encode()
    with path.open("wb") as file:
        file.write(_MAGIC + len(header).to_bytes(8, "little") + header)
        for each in arrays.values():
            file.write(bytes(-file.tell() % _ALIGNMENT))
            file.write(np.ascontiguousarray(each).reshape(-1).view(np.uint8).data)


def _load_arrays(path: Path, expected: Mapping[str, DTypeLike]) -> tuple[dict[str, NDArray[Any]], Any]:
    """Map the arrays of :func:`_save_arrays`, read-only; return them and ``about``.

    Args:
        path: the file.
        expected: the names and the types of its arrays, in order.

    Raises:
        OSError, ValueError, KeyError, TypeError: it is not there, not whole, or holds other arrays.
    """
    with path.open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length = int.from_bytes(whole[len(_MAGIC) : _START], "little")
    if whole[: len(_MAGIC)] != _MAGIC or length > len(whole) - _START:
        raise ValueError(f"{path} holds no arrays, or not all of its header")
    header = json.loads(whole[_START : _START + length])
    if list(header["arrays"]) != list(expected):
        raise ValueError(f"{path} holds other arrays")
    loaded: dict[str, NDArray[Any]] = {}
    end = _START + length
    for name, (kind, shape) in header["arrays"].items():
        if np.dtype(kind) != np.dtype(expected[name]):
            raise ValueError(f"{path}: {name} is of another type")
        start, count = end + -end % _ALIGNMENT, math.prod(shape)
        end = start + count * np.dtype(kind).itemsize
        loaded[name] = np.frombuffer(whole, kind, count, start).reshape(shape)  # refuses a file that is cut
    return loaded, header["about"]
