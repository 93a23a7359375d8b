"""Annotations of one split as flat arrays, independent of the data format.

The arrays are memory-mapped from one file, so all ranks and loader processes of a machine share one copy.
Opening the file takes the same time for a million images as for a thousand.
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
"""Bits of ``flags``. Training ignores these boxes; scores ignore difficult boxes and detections in crowds."""

_FILE = "annotations"
_ARRAYS = (
    *("path_bytes", "path_ends", "byte_ranges", "sizes"),
    *("offsets", "boxes", "labels", "flags", "areas"),
)


@dataclass(frozen=True)
class Annotations:
    """Annotations of one split. If they are stored in a folder, only its path is pickled.

    Attributes:
        class_names: names of the classes; labels are indices into this tuple.
        format: name of the data format.
        path_bytes, path_ends: concatenated paths of the images in the encoding of the file system, (bytes,),
            and the end of each path, (N,); see :meth:`path`.
        byte_ranges: offset and length of each image in its tar shard, (N, 2), or (0, 2) if all images are
            files; see :mod:`rankless.data.index.byte_ranges`.
        sizes: height and width of each upright image in pixels, (N, 2); 0, 0 if the image cannot be read.
        offsets: row of the first box of each image, and the total number of boxes, (N + 1,).
        boxes: xyxy in pixels of the upright image, clipped to the image, (T, 4); (0, 4) for classification.
        labels: class of each box, or ``IGNORED_LABEL``, (T,); class of each image for classification.
        flags: bits :data:`DIFFICULT` and :data:`CROWD` of each box, (T,).
        areas: area of each object in pixels, (T,); NaN if only the box is annotated.
        findings: problems in the data.
        about: notes on how the data was read.
        folder: folder that contains the arrays; None if they are in memory.
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
        return len(self.path_ends)

    @property
    def has_boxes(self) -> bool:
        """Whether the images are annotated with boxes. Otherwise, each image has one class."""
        return len(self.boxes) == len(self.labels)

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.about, *self.findings.notes())

    def path(self, index: int) -> str:
        """Return the path of an image; in a shard, it has the form ``train-000000.tar//0001.jpg``."""
        first = int(self.path_ends[index - 1]) if index else 0
        return os.fsdecode(self.path_bytes[first : int(self.path_ends[index])].tobytes())

    def paths(self) -> list[str]:
        """Return the paths of all images. For a million images, the list takes about 150 MB."""
        whole, ends = self.path_bytes.tobytes(), self.path_ends.tolist()
        return [os.fsdecode(whole[a:b]) for a, b in zip([0, *ends], ends, strict=False)]

    def rows(self, index: int) -> slice:
        """Return the range of an image's rows in ``boxes``, ``labels``, ``flags`` and ``areas``."""
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def objects(self, index: int) -> Iterator[tuple[list[float], int, int, float]]:
        """Yield the box (xyxy), label, flags and area of each object in an image."""
        rows = self.rows(index)
        columns = (each[rows].tolist() for each in (self.boxes, self.labels, self.flags, self.areas))
        return zip(*columns, strict=True)

    def digest(self) -> str:
        """Return a hash of the classes, image sizes and annotations. It does not depend on paths."""
        made = hashlib.blake2b("\n".join(self.class_names).encode(errors="surrogateescape"), digest_size=16)
        for array in (self.sizes, self.offsets, self.boxes, self.labels, self.flags):
            made.update(array.tobytes())
        return made.hexdigest()

    def save(self, folder: Path) -> None:
        """Write the annotations to ``folder``, which must exist and be empty; raise an OSError on failure."""
        about = {
            "class_names": self.class_names,
            "format": self.format,
            "about": self.about,
            "findings": self.findings.as_json(),
        }
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        try:
            save_file(arrays, folder / _FILE, {"about": json.dumps(about)})
        except SafetensorError as error:
            raise OSError(f"{folder}: {error}") from error

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Annotations:
        """Map the annotations that :meth:`save` wrote, and lock the folder against removal."""
        path = Path(folder)
        try:
            with safe_open(path / _FILE, "pt") as file:  # maps torch tensors, but would copy NumPy arrays
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
        if not Path(self.folder, _FILE).exists():  # the process that unpickles could not report this
            raise _gone(Path(self.folder))
        return Annotations.load, (self.folder,)


def _gone(folder: Path) -> UserError:
    return UserError(
        f"{folder}: the cached annotations were removed while the program was running; start again to "
        "recreate them"
    )


def flat_paths(paths: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Convert N paths to the arrays ``path_bytes``, uint8 (bytes,), and ``path_ends``, int64 (N,)."""
    encoded = [os.fsencode(path) for path in paths]
    ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def subset(annotations: Annotations, chosen: Sequence[int] | NDArray[np.int64]) -> Annotations:
    """Return the annotations of the images with the indices ``chosen``, (K,), in memory, without findings."""
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
    """Return the annotations, in memory, with only the boxes in the mask ``selected``, (T,)."""
    rows = np.concatenate(([0], np.cumsum(selected)))
    return replace(
        annotations,
        offsets=rows[annotations.offsets].astype(np.int64),
        **{name: getattr(annotations, name)[selected] for name in ("boxes", "labels", "flags", "areas")},
        folder=None,
    )
