"""Convert a data set to another format, read the result back, and compare the two bit for bit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rankless.curation.data_set import DataSet, known_format, left_out, must_be_outside, open_data_set
from rankless.data.datasets.class_choice import Classes
from rankless.data.datasets.open_split import examine
from rankless.data.formats import packing
from rankless.data.formats.registry import NAMES, format_named, writable, write
from rankless.data.formats.writing import ImageFiles, fit_names
from rankless.data.index.annotations import Annotations, with_boxes
from rankless.errors import UserError, counted, listed, one_of
from rankless.files.work_folder import new_folder, refuse_existing
from rankless.printing import ProgressBar
from rankless.user_modules import absolute

FIRST = 20
"""Maximum number of differences to list."""
_CLASSES = ("image-folder", "webdataset", "csv")  # formats with one class per image
# Losses that the writers report are not differences: flagged boxes are dropped, class names lose line breaks
# and surrounding spaces, and boxes within _EDGE of the left or top edge are moved to it.
_WITHOUT_FLAGS, _FIT_NAMES, _ROUNDED = ("darknet", "lines"), ("csv", "lines", "voc"), ("darknet", "voc")
_EDGE = np.float32(1e-5)


@dataclass(frozen=True)
class Converted:
    """A conversion of ``data`` to the format ``to``.

    Attributes:
        lost: notes on information that the new format cannot store, and on files that were left out.
        differences: differences between the original and the result.
    """

    data: DataSet
    to: str
    out: Path
    lost: list[str]
    differences: list[str]

    def as_json(self) -> dict[str, Any]:
        return {
            "out": str(self.out),
            "from": self.data.format,
            "to": self.to,
            "splits": {
                name: {"images": len(each), "boxes": len(each.boxes)}
                for name, each in self.data.splits.items()
            },
            "lost": self.lost,
            "equal": not self.differences,
            "differences": self.differences,
        }


@dataclass(frozen=True)
class _ImageWriter(ImageFiles):
    """Writes images, and records the paths that they will have after ``folder`` is renamed to ``out``."""

    out: Path = Path()
    folder: Path = Path()
    bar: ProgressBar | None = None
    paths: dict[tuple[int, int], str] = field(default_factory=dict)

    def put(self, annotations: Annotations, index: int, target: Path) -> None:
        super().put(annotations, index, target)
        path = self.out / target.relative_to(self.folder)
        self.paths[id(annotations), index] = os.path.abspath(path)  # noqa: PTH100 - without following links
        if self.bar:
            self.bar.advance()


def convert(
    root: str,
    to: str,
    out: Path,
    format: str = "auto",
    *,
    classes: Classes = "auto",
    how: Literal["copy", "link"] = "copy",
    shard_bytes: int | None = None,
) -> Converted:
    """Convert all splits of a data set, read the result back, and compare the two.

    The folder ``out`` must not exist or must be empty. If ``shard_bytes`` is given, the data is packed into
    tar shards of at most this size.
    """
    to = absolute(known_format(to, "--to", writable()))
    must_be_outside(root, out)
    refuse_existing(out)
    data = open_data_set(root, format, classes=classes)
    _refuse_unsuitable(to, data)
    paths: dict[tuple[int, int], str] = {}
    lost: list[str] = []
    if shard_bytes is not None:
        packing.pack(data.splits, out, shard_bytes)
    else:
        images = sum(map(len, data.splits.values()))
        with new_folder(out) as folder, ProgressBar(images, "writing images") as bar:
            lost = write(to, folder, data.splits, _ImageWriter(how, out, folder, bar, paths))
    differences = compare(data.splits, out, to, paths)
    return Converted(data, to, out, [*lost, *left_out(data.splits)], differences)


def _refuse_unsuitable(to: str, data: DataSet) -> None:
    if data.has_boxes and to == "image-folder":
        raise UserError(
            f"--to image-folder: class folders cannot store the boxes of {data.root}; choose another format"
        )
    if to not in NAMES:
        if not hasattr(format_named(to), "write"):
            raise UserError(f"--to {to}: this format has no function write(out, splits, files); add it")
    elif not data.has_boxes and to not in _CLASSES:
        raise UserError(
            f"--to {to}: this format requires boxes, but {data.root} has one class per image; expected "
            f"{one_of(_CLASSES)}"
        )


def compare(
    splits: Mapping[str, Annotations], out: Path, format: str, paths: Mapping[tuple[int, int], str]
) -> list[str]:
    """Describe the differences between ``splits`` and the splits read back from ``out``.

    Classes are compared by name, because some formats renumber them. The order of boxes may differ.
    Information that the writer reports as lost is ignored.

    The keys of ``paths`` are the ``id()`` of a split's annotations and the index of an image, and the values
    are the new paths of the images. If entries of a split are missing, its images are compared in the order
    in which they were written.
    """
    differences: list[str] = []
    names = list(dict.fromkeys(name for each in splits.values() for name in each.class_names))
    fit = fit_names(names, distinct=format == "csv")[0] if format in _FIT_NAMES else names
    held = dict(zip(names, fit, strict=True))
    for name, whole in splits.items():
        old = _comparable(whole, format, held)
        try:
            new = _comparable(examine(str(out), name, format, rescan=True), format, {})
        except UserError as error:
            differences += [f"{name}: {problem}" for problem in error.problems]
            continue
        if len(new) != len(old):
            differences.append(f"{name}: {counted(len(new), 'image')}; expected {len(old)}")
            continue
        unseen = sorted(set(old.class_names) - set(new.class_names))
        used = {old.class_names[label] for label in np.unique(old.labels).tolist()}
        if missing := [each for each in unseen if each in used]:
            differences.append(f"{name}: missing classes: {listed(missing)}")
        differences += _image_differences(
            name, old, new, [paths.get((id(whole), index)) for index in range(len(old))]
        )
    return differences


def _comparable(whole: Annotations, format: str, names: Mapping[str, str]) -> Annotations:
    """Rename the classes of a split, and remove the information that the writer reports as lost."""
    if format in _WITHOUT_FLAGS:
        whole = with_boxes(whole, whole.flags == 0)
    # Adding 0 turns -0 into 0, because a zero may lose its sign.
    boxes = whole.boxes + np.float32(0)
    if format in _ROUNDED:
        boxes[boxes < _EDGE] = 0
    return replace(whole, boxes=boxes, class_names=tuple(names.get(one, one) for one in whole.class_names))


def _image_differences(name: str, old: Annotations, new: Annotations, files: list[str | None]) -> list[str]:
    numbers: list[int | None] = list(range(len(old)))
    if all(files):
        indices = {os.path.abspath(path): number for number, path in enumerate(new.paths())}  # noqa: PTH100
        numbers = [indices.get(file or "") for file in files]
    differences, count = [], 0
    for index, number in enumerate(numbers):
        difference = "missing" if number is None else _difference(old, index, new, number)
        if difference:
            count += 1
            if count <= FIRST:
                differences.append(f"{name}: {old.path(index)}: {difference}")
    if count > FIRST:
        differences.append(f"{name}: … and {counted(count - FIRST, 'more image')}")
    return differences


def _difference(old: Annotations, index: int, new: Annotations, number: int) -> str:
    """Describe how the annotations of an image differ, or return an empty string."""
    if old.sizes[index].tolist() != new.sizes[number].tolist():
        return f"its size is {new.sizes[number].tolist()}; expected {old.sizes[index].tolist()}"
    before, after = _sorted(old, index), _sorted(new, number)
    if len(before) != len(after):
        return f"it has {counted(len(after), 'box', 'boxes')}; expected {len(before)}"
    for one, other in zip(before, after, strict=True):
        if one != other:
            return f"it has {_described(other)}; expected {_described(one)}"
    return ""


def _sorted(annotations: Annotations, index: int) -> list[tuple[str, bytes]]:
    """Return the sorted class names and coordinates, as bytes, of the boxes of an image."""
    rows = annotations.rows(index)
    names = [annotations.class_names[label] for label in annotations.labels[rows].tolist()]
    if not annotations.has_boxes:
        return [(name, b"") for name in names]
    return sorted(zip(names, (box.tobytes() for box in annotations.boxes[rows]), strict=True))


def _described(box: tuple[str, bytes]) -> str:
    return f"'{box[0]}'" + (f" at {np.frombuffer(box[1], np.float32).tolist()}" if box[1] else "")
