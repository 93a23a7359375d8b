"""CSV: a row for each box, its columns known by their names; or a row for each image and its class.

Corners are taken as they are, on the continuous plane where the first pixel reaches from 0 to 1. Columns:
:mod:`rankless.data.formats.csv_columns`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rankless.data.formats.csv_columns import EXPECTED, Columns, rows
from rankless.data.formats.csv_layout import csv_files, image_folders, is_plain, is_text, stated_classes
from rankless.data.formats.csv_writing import write
from rankless.data.formats.image_search import ImageSearch
from rankless.data.formats.rows import NO_AREA, Rows
from rankless.data.formats.splits import chosen, usual_order
from rankless.data.index.annotations import CROWD, DIFFICULT
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw
from rankless.errors import UserError, printable

__all__ = ["LAYOUT", "TITLE", "read", "recognize", "splits", "write"]

TITLE = "CSV"
LAYOUT = "'train.csv', 'train_labels.csv' or 'train/_annotations.csv', or one such .csv file"
_WHOLE = 1.001
"""If no box of a split reaches farther than this, its numbers are shares of the image."""
_YES, _NO = {"1", "true", "yes"}, {"", "0", "-1", "false", "no"}  # Open Images has -1 for "not known"


def recognize(root: Path) -> str:
    """Why ``root`` holds CSV: a file has columns for images, classes and boxes."""
    files = csv_files(root)
    sure = [name for name in usual_order(files) if is_plain(*files[name], root)]
    return f"'{files[sure[0]][0].name}' has columns for images and classes" if sure else ""


def splits(root: Path) -> list[str]:
    """The splits that have a file."""
    return usual_order(csv_files(root))


def read(root: Path, split: str) -> Raw:
    """One split; see :class:`rankless.data.formats.registry.Format`."""
    files = csv_files(root)
    if not files:
        raise UserError(f"{root}: found no CSV file of images and classes, expected {EXPECTED}.")
    name = chosen(root, split, files, LAYOUT)
    file, columns = files[name]
    known = stated_classes(root)
    names = known[1] if known else _names_in(files)
    search = ImageSearch(image_folders(root, name, file))
    reading = _Reading(file, columns, search, {each: label for label, each in enumerate(names)})
    reading.all()
    top = root if root.is_dir() else root.parent
    depends = [str(top), *(str(each) for each, _ in files.values()), *search.listed]
    about = [f"class names from {known[0]}"] if known else []
    raw = reading.rows.raw(
        reading.paths,
        [str(file)] * len(reading.paths),
        names,
        reading.stated,
        depends=depends + ([str(known[0])] if known else []),
        findings=reading.findings,
        about=[*about, *search.notes()],
    )
    if columns.box is None:
        raw.boxes = None
    else:
        raw.shares = _are_shares(columns, raw)
        raw.about.append(f"boxes are {columns.kind}, in {'shares of the image' if raw.shares else 'pixels'}")
    return raw


def _names_in(files: dict[str, tuple[Path, Columns]]) -> tuple[str, ...]:
    """The class names in all splits together, sorted; numbers by their value.

    Raises:
        UserError: there is none.
    """
    names: set[str] = set()
    for file, columns in files.values():
        for number, (_, cells) in enumerate(rows(file, columns.delimiter)):
            if (number or not columns.has_header) and columns.label < len(cells):
                has_box = columns.box is None or any(
                    cells[place] for place in columns.box if place < len(cells)
                )
                if has_box and cells[columns.label] and is_text(cells[columns.label]):
                    names.add(cells[columns.label])
    if not names:
        first = next(file for file, _ in files.values())
        raise UserError(f"{first} and the files beside it have no class name, expected {EXPECTED}.")
    if all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=lambda name: (len(name.lstrip("0")), name.lstrip("0"), name)))
    return tuple(sorted(names))


def _are_shares(columns: Columns, raw: Raw) -> bool:
    if columns.unit or raw.boxes is None:
        return columns.unit == "shares"
    finite = raw.boxes[np.isfinite(raw.boxes).all(1)]
    return len(finite) > 0 and bool((np.abs(finite) <= _WHOLE).all())


@dataclass
class _Reading:
    """One file on its way to the flat form."""

    file: Path
    columns: Columns
    search: ImageSearch
    labels: dict[str, int]
    paths: list[str] = field(default_factory=list)
    stated: list[tuple[int, int]] = field(default_factory=list)
    rows: Rows = field(default_factory=Rows)
    findings: Findings = field(default_factory=Findings)
    seen: dict[str, int] = field(default_factory=dict)
    names: dict[str, int | None] = field(default_factory=dict)  # an image's name to its number

    def all(self) -> None:
        """Every row; the images in the order of their first rows.

        Raises:
            UserError: the file cannot be read, or not one image is there.
        """
        columns = self.columns
        width = 1 + max(columns.path, columns.label, *(columns.box or ()))
        for number, (line, cells) in enumerate(rows(self.file, columns.delimiter)):
            if number == 0 and columns.has_header:
                continue
            place = f"{self.file}:{line}"
            if len(cells) < width or not cells[columns.path]:
                found = (
                    f"'{printable(columns.delimiter.join(cells))}', expected {width} columns with an image"
                )
                self.findings.add("not understood", place, found)
                continue
            before = len(self.paths)
            image = self._image(cells, place)
            if image is not None:
                self._row(cells, image, line, place, image < before)
        if not self.paths:
            missing = next(iter(self.names), "")
            looked = ", ".join(self.search.bases[:4])
            found = f"not one of its images is there; the first: '{printable(missing)}'; looked in {looked}"
            raise UserError(f"{self.file}: {found if missing else 'it has no row of an image'}.")

    def _image(self, cells: list[str], place: str) -> int | None:
        name = cells[self.columns.path]
        if name not in self.names:
            path = self.search.find(name)
            if path and path not in self.seen:
                self.seen[path] = len(self.paths)
                self.paths.append(path)
                self.stated.append(self._stated(cells))
            elif not path:
                self.findings.add("no image", place, f"no file '{printable(name)}'")
            self.names[name] = self.seen.get(path)
        return self.names[name]

    def _row(self, cells: list[str], image: int, line: int, place: str, again: bool) -> None:
        columns, label = self.columns, self._label(cells, place)
        if columns.box is None:
            if again:
                same = label is not None and label == self.rows.labels[image]
                found = printable(cells[columns.label])
                if same:
                    self.findings.add("listed twice", place, printable(cells[columns.path]))
                else:
                    self.findings.add("not understood", place, f"a second class '{found}', expected one")
            else:  # a row for each image, even of a faulty class, which ends everything
                self.rows.add(image, (0.0, 0.0, 0.0, 0.0), label or 0, line)
            return
        values = [cells[each] for each in columns.box]
        if not any(values):
            return  # an image without boxes
        if label is None:
            return
        try:
            a, b, c, d = map(float, values)
        except ValueError:
            found = f"'{printable(' '.join(values))}', expected four numbers"
            self.findings.add("not a number", place, found)
            return
        if columns.kind == "center and size":
            a, b = a - c / 2, b - d / 2
        box = (a, b, c, d) if columns.kind == "corners" else (a, b, a + c, b + d)
        flags = self._flag(cells, columns.difficult, DIFFICULT, place)
        flags |= self._flag(cells, columns.crowd, CROWD, place)
        self.rows.add(image, box, label, line, flags, self._area(cells))

    def _label(self, cells: list[str], place: str) -> int | None:
        """The label, None if there is none; told unless it is an image without boxes."""
        name = cells[self.columns.label]
        label = self.labels.get(name)
        if label is None and (self.columns.box is None or any(cells[each] for each in self.columns.box)):
            first = ", ".join(printable(each) for each in list(self.labels)[:10])
            self.findings.add("unnamed class", place, f"'{printable(name)}', expected one of {first}")
        return label

    def _flag(self, cells: list[str], column: int | None, flag: int, place: str) -> int:
        if column is None or column >= len(cells):
            return 0
        value = cells[column].casefold().removesuffix(".0")
        if value not in _YES | _NO:
            self.findings.add("not understood", place, f"'{printable(value)}', expected 0 or 1")
        return flag if value in _YES else 0

    def _area(self, cells: list[str]) -> float:
        column = self.columns.area
        try:
            return float(cells[column]) if column is not None and column < len(cells) else NO_AREA
        except ValueError:
            return NO_AREA

    def _stated(self, cells: list[str]) -> tuple[int, int]:
        try:
            height, width = (int(float(cells[place])) for place in self.columns.stated or ())
        except (ValueError, IndexError, OverflowError):
            return 0, 0
        return (height, width) if 0 < height < 2**31 and 0 < width < 2**31 else (0, 0)
