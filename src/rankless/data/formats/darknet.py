"""Reader and writer of Darknet's text labels (YOLO): one ``.txt`` file of ``class x y w h`` lines per image.

Classes count from 0. A box is its center and size, normalized by the upright image's sides. A line with more
numbers is a polygon, as written for segmentation; its bounds are the box.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from rankless.data.formats import outlines
from rankless.data.formats.darknet_layout import (
    LAYOUT,
    Split,
    find_split,
    label_folders,
    recognize,
    splits,
)
from rankless.data.formats.folders import FolderNames, composed
from rankless.data.formats.splits import as_file_name
from rankless.data.formats.writing import ImageFiles, file_names, lost_flags, names_of, rounded, shortest
from rankless.data.images.image_file import EXTENSIONS
from rankless.data.index.annotations import Annotations
from rankless.data.index.raw import Raw, RawBuilder
from rankless.data.index.scan import scan, with_headers
from rankless.errors import UserError, counted, printable
from rankless.files import reading

__all__ = ["LAYOUT", "TITLE", "read", "recognize", "splits", "write"]

TITLE = "Darknet (YOLO)"
# Text files beside labels that are not labels: class names, lists of images, notes.
_OTHERS = {"classes", "labels", "license", "list", "readme", "test", "train", "trainval", "val", "valid"}


def read(root: Path, split: str, class_names: Sequence[str] | None = None) -> Raw:
    """Read one split; see :class:`rankless.data.formats.registry.Format`."""
    files = find_split(root, split, class_names)
    items = list(_with_labels(files))
    if not any(label for _, label in items):
        first = Path(files.paths[0])
        expected = Path(label_folders(os.fspath(first.parent))[0], f"{first.stem}.txt")
        raise UserError(
            f"{root}: none of the {len(items)} images of the split '{split}' has a label file; expected "
            f"{expected} for the first; put labels into a folder 'labels' that mirrors 'images', or beside "
            "the images where no folder is called 'images'"
        )
    raw = files.with_raw(scan(read_labels, items, "images"))
    raw.names, raw.normalized = files.class_names, True
    return raw


def _with_labels(files: Split) -> Iterator[tuple[str, str]]:
    """Yield every image and its label file in one of :func:`label_folders` (empty if it has none)."""
    listings: dict[str, list[FolderNames]] = {}
    for image in files.paths:
        folder, name = image.rsplit("/", 1)
        if folder not in listings:
            listings[folder] = _listings(folder, files)
        stem = os.path.splitext(name)[0]  # noqa: PTH122 - Path takes ten times as long
        yield image, next((path for names in listings[folder] if (path := names.with_stem(stem))), "")


def _listings(folder: str, files: Split) -> list[FolderNames]:
    """List the label folders of one folder of images, and report labels without an image."""
    listings = [FolderNames(each, {".txt"}) for each in label_folders(folder)]
    files.depends += [folder, *(each.folder for each in listings)]
    known = {composed(stem) for stem in FolderNames(folder, EXTENSIONS).files}
    for each in listings if len(listings) == 1 else [one for one in listings if one.folder != folder]:
        for stem, file in each.files.items():
            if composed(stem) not in known and stem.lower() not in _OTHERS:
                files.findings.add("label without image", f"{each.folder}/{file}")
    return listings


def read_labels(items: list[tuple[str, ...]]) -> Raw:
    """Parse label files and read the headers of images, given as (image, label file or empty)."""
    made = RawBuilder()
    for image, label in items:
        number = made.add_image(image, label)
        if not label:
            made.findings.add("no label file", image)
            continue
        try:
            content = reading.read_bytes(label, reading.LABELS)
        except OSError as error:
            made.findings.add("unreadable file", label, f"{error.strerror or error}; expected a text file")
            continue
        if content.isspace() or not content:
            made.findings.add("empty", image)
        _parse(content, number, label, made)
    depends = [label for _, label in items if label]
    return with_headers(made.raw(normalized=True, depends=depends))


def _parse(content: bytes, image: int, file: str, made: RawBuilder) -> None:
    """Add the boxes of one label file."""
    text = content.removeprefix(b"\xef\xbb\xbf")
    if not _is_text(text):
        made.findings.add("unreadable file", file, "not UTF-8 text; expected lines of numbers")
        return
    for number, line in enumerate(text.splitlines(), 1):
        columns = line.split()
        if not columns:
            continue
        polygon = len(columns) > 6 and len(columns) % 2 == 1
        if len(columns) != 5 and not polygon:
            problem = f"{counted(len(columns), 'column')}; expected 5: class x y width height"
            made.findings.add("not understood", f"{file}:{number}", problem)
            continue
        try:
            if b"_" in line:  # Python would read 1_0 as 10
                raise ValueError
            label, *row = map(float, columns)
            if not label.is_integer():
                raise ValueError
        except ValueError:
            shown = printable(line.decode("utf-8", "replace").strip())
            expected = "numbers: class x y width height, the class a whole one"
            made.findings.add("not a number", f"{file}:{number}", f"'{shown}'; expected {expected}")
            continue
        if polygon:
            made.findings.add("outline", f"{file}:{number}")
        if not all(map(math.isfinite, row)):
            shown = printable(line.decode().strip())
            made.findings.add("not finite", f"{file}:{number}", f"'{shown}'; expected finite numbers")
            continue
        made.add_box(
            image,
            outlines.around(row[::2], row[1::2]) if polygon else _corners(*row),
            int(max(-(2.0**31), min(2.0**31, label))),
            number,
        )


def _is_text(content: bytes) -> bool:
    try:
        return b"\0" not in content and (content.isascii() or bool(content.decode()))
    except UnicodeDecodeError:
        return False


def _corners(x: float, y: float, width: float, height: float) -> tuple[float, float, float, float]:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write ``data.yaml``, ``images/SPLIT`` and ``labels/SPLIT``; return sentences about lost information.

    Difficult objects and crowds are left out, since they would be trained on as plain labels.
    """
    lost: list[str] = []
    content: dict[str, str | list[str]] = {}
    for split, data in splits.items():
        folder = as_file_name(split)
        lost += lost_flags(data, split)
        names = list(file_names(data))
        lost += rounded(split, _write_split(out, folder, data, names))
        for index, name in enumerate(names):
            files.put(data, index, out / "images" / folder / name)
        content[folder] = f"images/{folder}"
        if names != sorted(names):  # folders are read in name order, but the order determines the batches
            content[folder] = f"{folder}.txt"
            listed = "".join(f"./images/{folder}/{name}\n" for name in names)
            (out / f"{folder}.txt").write_text(listed, encoding="utf-8", errors="surrogateescape")
    content["names"] = list(names_of(splits))
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    (out / "data.yaml").write_text(text, encoding="utf-8")
    return lost


def _write_split(out: Path, folder: str, data: Annotations, names: Sequence[str]) -> int:
    """Write a label file for every image; return the number of boxes that do not read back exactly."""
    labels_folder, inexact = out / "labels" / folder, 0
    labels_folder.mkdir(parents=True)
    for index, name in enumerate(names):
        rows = data.rows(index)
        plain = data.flags[rows] == 0
        boxes, labels = data.boxes[rows][plain], data.labels[rows][plain]
        height, width = data.sizes[index].tolist()
        normalized, exact = _normalized(boxes.astype(np.float64), width, height)
        inexact += int((~exact).sum())
        lines = (
            " ".join([str(label), *map(shortest, row)]) + "\n"
            for label, row in zip(labels.tolist(), normalized.tolist(), strict=True)
        )
        (labels_folder / Path(name).with_suffix(".txt")).write_text("".join(lines), encoding="utf-8")
    return inexact


def _normalized(
    boxes: NDArray[np.float64], width: int, height: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return normalized centers and sizes, (N, 4), and a mask of those that restore the same float32, (N,).

    At the left and upper edges, the center is exactly half the size, which restores 0.
    """
    sides = np.array([width, height], np.float64)
    low, high = boxes[:, :2], boxes[:, 2:]
    size = (high - low) / sides
    center = (low + high) / 2 / sides
    back = np.concatenate((center - size / 2, center + size / 2), 1) * np.tile(sides, 2)
    exact = (back.clip(0, np.tile(sides, 2)).astype(np.float32) == boxes).all(1)
    return np.concatenate((center, size), 1), exact
