"""The annotations of one split as flat arrays, independent of the format they came from.

Arrays are memory-mapped from one file, so every rank and loader process of a machine shares one copy and
opening costs the same for a thousand images and for a million.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rankless.data.index.findings import Findings
from rankless.errors import UserError
from rankless.files.cache_folder import hold

DIFFICULT, CROWD = 1, 2
"""Bits of ``flags``: neither is trained on. Scores ignore a difficult box, and what lies in a crowd."""

_FILE = "annotations"
_ARRAYS = (
    *("path_bytes", "path_ends", "byte_ranges", "sizes"),
    *("offsets", "boxes", "labels", "flags", "areas"),
)


@dataclass(frozen=True)
class Annotations:
    """The annotations of one split. If they are stored in a folder, they pickle as its path.

    Attributes:
        class_names: a label is an index into this list.
        format: name of the format it was read from.
        path_bytes, path_ends: the concatenated paths of the image files in the file system's encoding,
            (bytes,), and the end of each path, (N,). See :meth:`path`.
        byte_ranges: offset and length of each image in its tar shard, (N, 2); (0, 2) if every image is a
            file. See :mod:`rankless.data.index.byte_ranges`.
        sizes: height and width of each upright image in pixels, (N, 2); 0, 0 if it cannot be read.
        offsets: image i has the boxes ``offsets[i] : offsets[i + 1]``; (N + 1,).
        boxes: xyxy in pixels of the upright image, clipped to it, (T, 4); (0, 4) for classification.
        labels: class of each box, (T,); for classification, of each image.
        flags: :data:`DIFFICULT`, :data:`CROWD`, (T,).
        areas: area of each object in pixels, (T,); NaN if the format gives only its box.
        findings: problems in the data.
        about: further sentences about how the data was read.
        folder: folder that holds the arrays; None if they are in memory.
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
        """Return the number of images."""
        return len(self.path_ends)

    @property
    def has_boxes(self) -> bool:
        """Whether the annotations are boxes; otherwise each image has one class."""
        return len(self.boxes) == len(self.labels)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences with counts about how the data was read and what was wrong."""
        return (*self.about, *self.findings.notes())

    def path(self, index: int) -> str:
        """Return the path of image ``index``, which is ``train-000000.tar//0001.jpg`` in a shard."""
        first = int(self.path_ends[index - 1]) if index else 0
        return os.fsdecode(self.path_bytes[first : int(self.path_ends[index])].tobytes())

    def paths(self) -> list[str]:
        """Return the paths of all images; for a million images, the list takes about 150 MB."""
        whole, ends = self.path_bytes.tobytes(), self.path_ends.tolist()
        return [os.fsdecode(whole[a:b]) for a, b in zip([0, *ends], ends, strict=False)]

    def rows(self, index: int) -> slice:
        """Return the slice of ``boxes``, ``labels``, ``flags`` and ``areas`` for image ``index``."""
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def objects(self, index: int) -> Iterator[tuple[list[float], int, int, float]]:
        """Yield box (xyxy), label, flags and area of each object in image ``index``."""
        rows = self.rows(index)
        columns = (each[rows].tolist() for each in (self.boxes, self.labels, self.flags, self.areas))
        return zip(*columns, strict=True)

    def digest(self) -> str:
        """Return a hash of classes, sizes and annotations in order, independent of the files' location."""
        made = hashlib.blake2b("\n".join(self.class_names).encode(errors="surrogateescape"), digest_size=16)
        for array in (self.sizes, self.offsets, self.boxes, self.labels, self.flags):
            made.update(array.tobytes())
        return made.hexdigest()

    def save(self, folder: Path) -> None:
        """Write all arrays into ``folder``, which must exist and be empty."""
        about = {
            "class_names": self.class_names,
            "format": self.format,
            "about": self.about,
            "findings": self.findings.as_json(),
        }
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        save_file(arrays, folder / _FILE, {"about": json.dumps(about)})

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Annotations:
        """Map the arrays that :meth:`save` wrote; the data is read on first access.

        No other process removes the folder while this one uses it.
        """
        path = Path(folder)
        try:
            with safe_open(path / _FILE, "pt") as file:  # torch's tensors are mapped, NumPy's arrays copied
                arrays = {name: file.get_tensor(name).numpy() for name in _ARRAYS}
                about = json.loads(file.metadata()["about"])
        except FileNotFoundError as error:
            raise _gone(path) from error
        except SafetensorError as error:
            raise ValueError(f"{path}: {error}") from error
        for array in arrays.values():
            array.flags.writeable = False
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
        if not Path(self.folder, _FILE).exists():  # raised here, where the message is shown
            raise _gone(Path(self.folder))
        return Annotations.load, (self.folder,)


def _gone(folder: Path) -> UserError:
    return UserError(
        f"{folder}: the cached annotations are gone; expected them to stay while the program runs (see "
        "RANKLESS_CACHE); start again, and the data is read again"
    )


def flat_paths(paths: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return N paths as ``path_bytes``, uint8 (bytes,), and ``path_ends``, int64 (N,)."""
    encoded = [os.fsencode(path) for path in paths]
    ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def subset(annotations: Annotations, chosen: Sequence[int] | NDArray[np.int64]) -> Annotations:
    """Return the images ``chosen``, indices (K,), in that order, in memory, with boxes but no findings."""
    indices = np.asarray(chosen, np.int64).reshape(-1)
    counts = annotations.offsets[indices + 1] - annotations.offsets[indices]
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    rows = np.repeat(annotations.offsets[indices] - offsets[:-1], counts) + np.arange(offsets[-1])
    paths = annotations.paths()
    path_bytes, path_ends = flat_paths([paths[index] for index in indices.tolist()])
    return replace(
        annotations,
        path_bytes=path_bytes,
        path_ends=path_ends,
        byte_ranges=annotations.byte_ranges[indices if len(annotations.byte_ranges) else slice(0)],
        sizes=annotations.sizes[indices],
        offsets=offsets,
        boxes=annotations.boxes[rows] if annotations.has_boxes else annotations.boxes,
        **{name: getattr(annotations, name)[rows] for name in ("labels", "flags", "areas")},
        findings=Findings(),
        folder=None,
    )


def with_boxes(annotations: Annotations, selected: NDArray[np.bool_]) -> Annotations:
    """Return the same images, in memory, with only the boxes in the mask ``selected``, (T,)."""
    rows = np.concatenate(([0], np.cumsum(selected)))
    return replace(
        annotations,
        offsets=rows[annotations.offsets].astype(np.int64),
        **{name: getattr(annotations, name)[selected] for name in ("boxes", "labels", "flags", "areas")},
        folder=None,
    )
