"""COCO's instance annotations: one JSON file per split, boxes ``[x, y, width, height]`` in pixels.

Lin et al., "Microsoft COCO: Common Objects in Context", 2014, and https://cocodataset.org/#format-data. The
image's corner is (0, 0) on the continuous plane, so ``xyxy = (x, y, x + width, y + height)``.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rankless.data.formats.coco_classes import Classes, identity, read_classes
from rankless.data.formats.coco_file import Annotation, Image, Parts, decoded, entries, load
from rankless.data.formats.coco_layout import annotation_files, image_folders, looked_into, stem
from rankless.data.formats.coco_outline import outline_box
from rankless.data.formats.coco_writing import write
from rankless.data.formats.image_search import ImageSearch
from rankless.data.formats.rows import NO_AREA, Rows
from rankless.data.formats.splits import chosen, usual_order
from rankless.data.index.annotations import CROWD, DIFFICULT
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw
from rankless.errors import UserError, printable

__all__ = ["LAYOUT", "TITLE", "read", "recognize", "splits", "write"]

TITLE = "COCO JSON"
LAYOUT = (
    "'annotations/instances_train.json' with the images in 'train' or 'images/train', "
    "'train/_annotations.coco.json' beside the images, or one such .json file"
)
_SAME = 1e-6
"""An area that differs from the box's by a smaller share says no more than the box."""
_GONE = -1  # instead of an image's number: it is not there


def recognize(root: Path) -> str:
    """Why ``root`` is COCO's: it is a ``.json`` file, or a folder that has one with COCO's lists."""
    if root.is_file():
        return "it is a .json file" if root.suffix.lower() == ".json" else ""
    files = annotation_files(root)
    first = next((files[name] for name in usual_order(files)), None)
    return f"it has '{first.relative_to(root)}'" if first else ""


def splits(root: Path) -> list[str]:
    """The splits that have an annotation file."""
    return usual_order(annotation_files(root))


def read(root: Path, split: str) -> Raw:
    """One split; see :class:`rankless.data.formats.registry.Format`."""
    files = annotation_files(root)
    full = (name for name, file in files.items() if stem(file) == split)  # train2017, which is called train
    name = next(full, None) or chosen(root, split, files, LAYOUT)
    file = files[name]
    classes = read_classes(files)
    parts = load(file)
    if missing := [key for key in ("images", "annotations") if getattr(parts, key) is None]:
        raise UserError(
            f"{file} has no {' and no '.join(repr(key) for key in missing)}, expected a list; a file for "
            "training has 'images', 'annotations' and 'categories'."
        )
    search = ImageSearch(image_folders(root, name, file))
    reading = _Reading(str(file), classes, search)
    reading.samples(parts)
    reading.boxes(parts)
    raw = reading.rows.raw(
        reading.paths,
        [str(file)] * len(reading.paths),
        classes.names,
        reading.stated,
        depends=[*looked_into(root, files.values()), *map(str, files.values()), *search.listed],
        findings=reading.findings,
        about=[*classes.notes, *search.notes()],
    )
    raw.counted = "annotation"
    return raw


@dataclass
class _Reading:
    """One file on its way to the flat form."""

    file: str
    classes: Classes
    search: ImageSearch
    paths: list[str] = field(default_factory=list)
    stated: list[tuple[int, int]] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)  # an image's id to its number
    rows: Rows = field(default_factory=Rows)
    findings: Findings = field(default_factory=Findings)

    def tell(self, kind: str, place: str, found: str) -> None:
        self.findings.add(kind, f"{self.file}: {place}", found)

    def samples(self, parts: Parts) -> None:
        """The images in the file's order, each once.

        Raises:
            UserError: not one of them is there.
        """
        seen: dict[str, int] = {}
        missing = ""
        for number, entry in enumerate(entries(parts.images or [], Image)):
            if entry is None or not isinstance(entry.file_name, str) or entry.id is None:
                expected = "expected an object with an 'id' and a 'file_name'"
                self.tell("not understood", f"image {number}", f"{_shown(entry)}, {expected}")
                continue
            key, name = identity(entry.id), entry.file_name
            path = self.search.find(name)
            if not path:
                missing = missing or name
                self.tell("no image", f"image {_short(key)}", f"no file '{printable(name)}'")
            same = seen.get(path, len(self.paths)) if path else _GONE
            if self.numbers.setdefault(key, same) != same:
                self.tell(
                    "not understood", f"image {_short(key)}", f"'{printable(name)}' has the id of another"
                )
            elif path in seen:
                self.tell("listed twice", f"image {_short(key)}", f"'{printable(name)}'")
            elif path:
                seen[path] = same
                self.paths.append(path)
                self.stated.append(_stated(entry))
        if not self.paths:
            looked = ", ".join(self.search.bases[:4])
            found = f"not one of its images is there; the first: '{printable(missing)}'; looked in {looked}"
            odd = self.findings.first.get("not understood", [])
            nothing = (
                f"no entry of 'images' can be used; the first: {odd[0].found}" if odd else "it lists no image"
            )
            raise UserError(f"{self.file}: {found if missing else nothing}.")

    def boxes(self, parts: Parts) -> None:
        """The boxes in the file's order."""
        ids = array("q")
        for number, entry in enumerate(entries(parts.annotations or [], Annotation)):
            if entry is None:
                self.tell("not understood", f"annotation {number} of the list", "it is no object in UTF-8")
                continue
            image = _known(self.numbers, entry.image_id)
            if image is None:
                self.tell("unknown image", _place(entry, number), f"image_id {_short(entry.image_id)}")
            elif image != _GONE:
                line = entry.id if isinstance(entry.id, int) and abs(entry.id) < 2**62 else number
                ids.append(line)
                self._box(entry, image, line, number)
        known, counts = np.unique(np.array(ids, np.int64), return_counts=True)
        for each in known[counts > 1].tolist():
            self.tell("repeated id", f"annotation {each}", "")

    def _box(self, entry: Annotation, image: int, line: int, number: int) -> None:
        label = _known(self.classes.labels, entry.category_id)
        if label is None:
            first = ", ".join(printable(str(key)) for key in list(self.classes.labels)[:10])
            found = f"category_id {_short(entry.category_id)}, expected one of {first}"
            self.tell("unnamed class", _place(entry, number), found)
            return
        flags = self._flags(entry, number) if entry.iscrowd or entry.ignore else 0
        box = entry.bbox
        try:
            if not box:
                outline = outline_box(decoded(entry.segmentation))
                if outline is None:
                    found = "it has neither 'bbox' nor an outline"
                    self.tell("not understood", _place(entry, number), found)
                    return
                self.tell("outline", _place(entry, number), "")
                x1, y1, x2, y2 = outline
            else:
                x1, y1, width, height = box
                x2, y2 = x1 + width, y1 + height
            self.rows.add(image, (x1, y1, x2, y2), label, line, flags, _area(entry, x2 - x1, y2 - y1))
        except (TypeError, OverflowError):
            found = f"bbox {_short(box)}, expected four numbers"
            self.tell("not a number", _place(entry, number), found)
        except ValueError:
            found = f"bbox {_short(box)}, expected x, y, width, height"
            self.tell("not understood", _place(entry, number), found)

    def _flags(self, entry: Annotation, number: int) -> int:
        flags = 0
        for key, value, flag in (("iscrowd", entry.iscrowd, CROWD), ("ignore", entry.ignore, DIFFICULT)):
            if not value:
                continue
            if value != 1:
                found = f"{key} {_short(value)}, expected 0 or 1"
                self.tell("not understood", _place(entry, number), found)
            flags |= flag
        return flags


def _known(numbers: Mapping[Any, int], key: Any) -> int | None:
    """What an id stands for, which nearly always is an integer."""
    number = numbers.get(key) if type(key) is int else None
    return numbers.get(identity(key)) if number is None else number


def _place(entry: Annotation, number: int) -> str:
    return f"annotation {number} of the list" if entry.id is None else f"annotation {_short(entry.id)}"


def _area(entry: Annotation, width: float, height: float) -> float:
    """The object's area in pixels where the file says more than its box; else NaN."""
    area = entry.area
    if type(area) not in (int, float) or not 0 <= area < 1e30:
        return NO_AREA
    return NO_AREA if abs(area - width * height) <= _SAME * abs(width * height) else float(area)


def _stated(entry: Image) -> tuple[int, int]:
    sides = (entry.height, entry.width)
    known = all(isinstance(side, int | float) and 0 < side < 2**31 for side in sides)
    return (int(sides[0]), int(sides[1])) if known else (0, 0)


def _short(value: Any) -> str:
    return printable(str(value))


def _shown(entry: Image | None) -> str:
    return (
        "it is no object" if entry is None else f"id {_short(entry.id)}, file_name {_short(entry.file_name)}"
    )
