"""Read tables of images, in which each row is an image with its objects or its class.

A row has a ``label`` or ``objects``. Objects are a dict of lists or a list of dicts, with ``bbox`` (x, y,
width, height, or corners) and ``category``. The images are separate files or are stored in the table.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankless.data.formats.folders import ImageSearch, ListedImages, in_order, numbered_names
from rankless.data.images.image_file import MOST_BYTES, too_large
from rankless.data.index.annotations import CROWD
from rankless.data.index.box_forms import from_corners
from rankless.data.index.findings import Findings
from rankless.data.index.raw import NO_AREA, Raw
from rankless.data.index.scan import size
from rankless.errors import UserError, counted, printable

Row = tuple[int, dict[str, Any]]  # the number of a row in its file, and the row

_FILE = re.compile(r"(.*_)?file_name")
_BOXES, _CROWD = ("bbox", "bboxes", "boxes", "box", "bounding_box"), ("iscrowd", "is_crowd")
_CLASSES = ("category", "categories", "category_id", "label", "labels", "class", "classes", "class_id")
_LABELS = ("label", "labels", "class", "category", "fine_label")
_READ = {*_BOXES, *_CROWD, *_CLASSES, *_LABELS, "area"}
_LOOKED_AT = 1000  # number of rows to examine to find the columns
_WHOLE = 1.001  # maximum value of normalized coordinates


class Stored(NamedTuple):
    """An encoded image and the position of its first byte in the file that ``path`` refers to."""

    path: str
    offset: int
    content: bytes


class Table:
    """The base class of tables. By default, rows refer to separate image files.

    Attributes:
        images: name of the column with the images, or "" if the images are separate files.
        normalized: whether boxes are normalized by the image size; None to infer this from the values.
    """

    images = ""
    normalized: bool | None = None

    def __init__(self, file: Path) -> None:
        self.file = file

    def rows(self, findings: Findings) -> Iterator[Row]:
        """Yield the rows, but not their images, and add a finding for each invalid row."""
        raise NotImplementedError

    def class_names(self, outer: str, key: str) -> list[str] | None:
        """Return the class names for the field ``key`` in the column ``outer``, or None if unknown."""
        return None

    def stored(self) -> Iterator[Stored | None]:
        """Yield the stored image of each row, or None for a row without an image."""
        return iter(())


def is_read(column: str, inner: Collection[str]) -> bool:
    """Return whether a column is needed; ``inner`` are the names of its fields."""
    return bool(names_image(column) or column in _READ or not set(_BOXES).isdisjoint(inner))


def names_image(column: str) -> bool:
    """Return whether a column with this name contains the names of image files."""
    return _FILE.fullmatch(column) is not None


class _Columns(NamedTuple):
    """The names of the columns and fields that contain annotations."""

    image: str  # column of the file names; empty if the table contains the images
    outer: str  # column of the objects; empty if box and label are columns
    box: str  # field of an object's box; empty for classification
    label: str  # field of an object's class


def read_tables(
    root: Path, tables: Sequence[Table], others: Sequence[Table], given: Sequence[str] | None = None
) -> Raw:
    """Read a split from its tables.

    ``others`` are the tables of other splits, whose classes are included. ``given`` are the class names for
    data whose classes are only numbers.
    """
    columns = _columns(tables)
    names, names_file = _names(root, [*tables, *others], columns, given)
    first = tables[0].file
    reader = _Reader(first, ImageSearch([first.parent]), columns=columns, names=names)
    for table in tables:
        reader.add(table)
    depends = [root, *(table.file.parent for table in tables), *(table.file for table in (*tables, *others))]
    boxed = bool(columns.box)
    raw = reader.raw(names, names_file, depends, "no row has an image", boxed=boxed)
    raw.form, stated = "xywh" if boxed else "", tables[0].normalized
    raw.unsure = boxed and stated is None
    raw.normalized = _is_normalized(raw) if stated is None else stated
    return raw


def _columns(tables: Sequence[Table]) -> _Columns:
    where, image, label = tables[0].file, "", ""
    for _, row in islice(chain.from_iterable(table.rows(Findings()) for table in tables), _LOOKED_AT):
        if not tables[0].images:
            image = image or next(filter(names_image, row), "")
        for outer, inner in (("", row), *((name, _first(value)) for name, value in row.items())):
            if box := next((each for each in _BOXES if inner.get(each) is not None), ""):
                return _Columns(image, outer, box, next((each for each in _CLASSES if each in inner), ""))
        label = label or next((each for each in _LABELS if each in row), "")
    if not (tables[0].images or image):
        raise UserError(f"{where}: no images; expected a column 'file_name', or encoded images")
    if not label:
        raise UserError(
            f"{where}: no boxes and no classes; expected 'objects' with 'bbox' and 'category', or 'label'"
        )
    return _Columns(image, "", "", label)


def _first(value: Any) -> Mapping[str, Any]:
    """Return a cell's dict of lists, or the first dict in its list; an empty dict for other values."""
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, dict) else {}


def _objects(row: Mapping[str, Any], columns: _Columns) -> list[Mapping[str, Any]]:
    """Return the objects of a row as dicts; raise ValueError if lists have different lengths."""
    value = row.get(columns.outer) if columns.outer else row
    if not columns.box:
        return [row]
    if isinstance(value, list):
        return [each if isinstance(each, dict) else {} for each in value]
    value = {} if value in (None, "") else value
    boxes = value.get(columns.box) if isinstance(value, Mapping) else value
    if boxes not in (None, "") and not isinstance(boxes, list):
        problem = f"'{printable(str(boxes))}' in '{columns.outer or columns.box}'"
        raise ValueError(f"{problem}; expected a list of boxes, each a list of four numbers")
    keys = [columns.box, columns.label, *_CROWD, "area"]
    lists = {key: each for key in keys if isinstance(each := value.get(key), list)}
    count = len(lists.get(columns.box, ()))
    if len(lists.get(columns.label, ())) != count:
        classes = len(lists.get(columns.label, ()))
        boxes = counted(count, "box", "boxes")
        raise ValueError(f"found {boxes}, but {counted(classes, 'class', 'classes')}; expected equal numbers")
    return [{key: each[at] for key, each in lists.items() if len(each) == count} for at in range(count)]


def _names(
    root: Path, tables: Sequence[Table], columns: _Columns, given: Sequence[str] | None
) -> tuple[tuple[str, ...], Path | None]:
    if not columns.label:
        where = tables[0].file
        raise UserError(
            f"{where}: the boxes have no class; expected 'category' in addition to '{columns.box}'"
        )
    found: set[int | str | None] = set()
    for table in tables:
        if named := table.class_names(columns.outer, columns.label):
            return tuple(named), None
    for _, row in chain.from_iterable(table.rows(Findings()) for table in tables):
        try:
            found.update(_class(each.get(columns.label)) for each in _objects(row, columns))
        except ValueError:
            continue  # reported when the split is read
    texts = {each for each in found if isinstance(each, str)}
    numbers = sorted(each for each in found if isinstance(each, int))
    if texts and numbers:
        raise UserError(
            f"{tables[0].file}: '{columns.label}' is sometimes a name ('{printable(min(texts))}') and "
            f"sometimes a number ({numbers[0]}); expected only names or only numbers"
        )
    if not numbers:
        return tuple(in_order(texts)), None
    return numbered_names(
        [root if root.is_dir() else root.parent],
        given,
        f"{root}: the classes are numbers without names; add a file 'classes.txt' (one name per line, "
        "starting with class 0)",
    )


def _class(value: Any) -> int | str | None:
    """Return the number or name of a class, or None for an invalid value."""
    if isinstance(value, str):
        return value or None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass
class _Reader(ListedImages):
    columns: _Columns = field(kw_only=True)
    names: Sequence[str] = field(kw_only=True)

    def __post_init__(self) -> None:
        self.labels: dict[Any, int] = {name: label for label, name in enumerate(self.names)}
        self.labels |= {label: label for label in range(len(self.names))}

    def add(self, table: Table) -> None:
        self.file = table.file
        if not table.images:
            for number, row in table.rows(self.made.findings):
                name = row.get(self.columns.image)
                if not isinstance(name, str) or not name:
                    problem = f"no '{self.columns.image}'; expected a file name"
                    self.report("not understood", f":{number}", problem)
                elif self._has_class(row, number) and (path := self.locate(name, f":{number}")):
                    self._add(row, self.image(path), number)
            return
        for (number, row), stored in zip(table.rows(self.made.findings), table.stored(), strict=True):
            if stored is None:
                self.report("no image", f":{number}", "the image is empty")
                continue
            if not self._has_class(row, number):
                continue
            where = {"size": self._size(stored), "byte_range": (stored.offset, len(stored.content))}
            self._add(row, self.made.add_image(stored.path, str(table.file), **where), number)

    def _has_class(self, row: Mapping[str, Any], number: int) -> bool:
        """Return whether an image can be added: without boxes, it needs a class."""
        return bool(self.columns.box) or self._label(row.get(self.columns.label), f":{number}") is not None

    def _size(self, stored: Stored) -> tuple[int, int]:
        if len(stored.content) > MOST_BYTES:
            self.made.findings.add("unreadable image", stored.path, too_large(len(stored.content)))
            return 0, 0
        return size(io.BytesIO(stored.content), stored.path, self.made.findings)

    def _add(self, row: Mapping[str, Any], image: int, number: int) -> None:
        try:
            objects = _objects(row, self.columns)
        except ValueError as error:
            self.report("not understood", f":{number}", str(error))
            return
        for each in objects:
            label = self._label(each.get(self.columns.label), f":{number}")
            if label is None:
                continue
            if not self.columns.box:
                self.made.add_label(image, label, number)
                continue
            try:
                x, y, width, height = each[self.columns.box]
                crowd = CROWD if any(each.get(key) for key in _CROWD) else 0
                area = NO_AREA if each.get("area") is None else float(each["area"])
                self.made.add_box(image, (x, y, x + width, y + height), label, number, crowd, area)
            except (TypeError, ValueError, KeyError, OverflowError):
                shown = printable(str(each.get(self.columns.box)))
                self.report("not a number", f":{number}", f"'{shown}'; expected four numbers")

    def _label(self, value: Any, where: str) -> int | None:
        label = _class(value)
        if label in self.labels:
            return self.labels[label]
        if isinstance(label, int):
            self.report("class out of range", where, f"{label}; expected 0 to {len(self.names) - 1}")
        else:
            kind = "unnamed class" if self.columns.box else "no class"
            self.report(kind, where, f"{printable(repr(value))}; expected a class")
        return None


def _is_normalized(raw: Raw) -> bool:
    """Infer from the values whether boxes are normalized; add a note if they are."""
    if raw.boxes is None or not len(raw.boxes) or not np.isfinite(raw.boxes).all():
        return False
    normalized = bool((np.abs(from_corners(raw.boxes, raw.form)) <= _WHOLE).all())
    raw.about += ["boxes are normalized to 0–1"] * normalized
    return normalized
