"""Read and write CSV annotations: one row per box, or one row per image with its class.

Columns are identified by the names in the first row, ignoring case and punctuation (``image_id``, ``ImageID``
and ``Image Id`` are the same), or by the fixed order used for RetinaNet. Coordinates are continuous: the
first pixel extends from 0 to 1.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rankless.data.formats.folders import (
    ImageSearch,
    ListedImages,
    in_order,
    names_file,
    read_names,
    subfolders,
)
from rankless.data.formats.splits import as_file_name, chosen, usual_order
from rankless.data.formats.writing import ImageFiles, file_names, fit_names, on_one_line, shortest
from rankless.data.images.image_file import is_image
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.data.index.raw import NO_AREA, Raw, stated_size
from rankless.errors import UserError, one_of, printable
from rankless.files import reading

EXPECTED = (
    "a first row with a column for the image (filename, image, image_id or path), one for the class "
    "(class, label, name or category) and, for boxes, xmin, ymin, xmax, ymax or x, y, w, h; or rows "
    "'path,x1,y1,x2,y2,class'"
)
Corners = tuple[int, int, int, int]

_FILE = ("filename", "filepath", "imagepath", "imagename", "imagefile")
_PATH = (*_FILE, "path", "file", "image", "img", "imageid")
_CLASS = ("class", "classname", "label", "labelname")
_LABEL = (*_CLASS, "category", "categoryname", "name", "classid", "labelid")
_LEFT, _TOP = ("xmin", "x1", "left", "bboxxmin", "bboxx1"), ("ymin", "y1", "top", "bboxymin", "bboxy1")
_RIGHT, _BOTTOM = (
    ("xmax", "x2", "right", "bboxxmax", "bboxx2"),
    ("ymax", "y2", "bottom", "bboxymax", "bboxy2"),
)
_X, _Y = ("x", "bboxx", *_LEFT), ("y", "bboxy", *_TOP)
_CX, _CY = ("xcenter", "centerx", "cx", "xc"), ("ycenter", "centery", "cy", "yc")
_W, _H = ("w", "bw", "boxwidth", "bboxwidth", "bboxw"), ("h", "bh", "boxheight", "bboxheight", "bboxh")
_UNITS = {"px": "pixels", "pixels": "pixels"} | dict.fromkeys(("norm", "normalized", "rel"), "normalized")


@dataclass(frozen=True)
class Columns:
    """The layout of a CSV file. Columns are given by their positions; None for a missing column."""

    delimiter: str
    has_header: bool
    path: int
    label: int
    box: Corners | None = None  # columns of the four numbers of a box; None for classification
    kind: Literal["corners", "corner and size", "center and size"] = "corners"  # meaning of these numbers
    unit: str = ""  # pixels or normalized (by the image size); "" to infer the unit from the values
    stated: tuple[int, int] | None = None  # columns of the height and width of the image
    difficult: int | None = None
    crowd: int | None = None
    area: int | None = None


def rows(file: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the stripped cells of each nonempty row."""
    try:
        with reading.opened_text(file, errors="surrogateescape", newline="") as opened:
            reader = csv.reader(opened, delimiter=delimiter, skipinitialspace=True)
            for row in reader:
                cells = [cell.strip() for cell in row]
                if any(cells):
                    yield reader.line_num, cells
    except (OSError, csv.Error) as error:
        why = reading.reason(error) if isinstance(error, OSError) else error
        raise UserError(f"{file}: cannot be read as CSV: {why}; expected {EXPECTED}") from None


def columns_of(file: Path) -> Columns | None:
    """Return the layout of a file, or None if it lacks columns for images and classes, or cannot be read."""
    best: Columns | None = None
    widest = 1
    for delimiter in ",;\t|":
        try:
            first = next((cells for _, cells in rows(file, delimiter)), [])
        except UserError:
            return None
        if len(first) > widest:
            widest, best = len(first), _by_position(first, delimiter) or _by_name(first, delimiter)
    return best


def _by_position(first: Sequence[str], delimiter: str) -> Columns | None:
    if not is_image(first[0]):
        return None
    if len(first) == 6 and all(_is_number(cell) or not cell for cell in first[1:5]):
        return Columns(delimiter, False, 0, 5, (1, 2, 3, 4), unit="pixels")
    return Columns(delimiter, False, 0, 1) if len(first) == 2 else None


def _by_name(first: Sequence[str], delimiter: str) -> Columns | None:
    positions: dict[str, int] = {}
    units: dict[int, str] = {}
    for position, cell in enumerate(first):
        name = re.sub(r"[\W_]", "", cell.casefold())
        for ending, unit in _UNITS.items():
            if name.endswith(ending) and name != ending:
                name = name.removesuffix(ending)
                units[position] = unit
        positions.setdefault(name, position)
    path, label = _position(positions, _PATH), _position(positions, _LABEL)
    if path is None or label is None:
        return None
    corners = _four(positions, _LEFT, _TOP, _RIGHT, _BOTTOM)
    # Next to a single corner, width and height belong to the box.
    beside = (*_W, "width"), (*_H, "height")
    size = _four(positions, _X, _Y, *beside)
    center = _four(positions, _CX, _CY, *beside)
    box = corners or center or size
    stated_units = {units[each] for each in box or () if each in units}
    open_images = "imageid" in positions and "labelname" in positions
    width, height = (
        _position(positions, (f"image{side}", f"img{side}", side)) for side in ("width", "height")
    )
    stated = (
        None if width is None or height is None or (box and {width, height} & {*box}) else (height, width)
    )
    return Columns(
        delimiter,
        True,
        path,
        label,
        box,
        "corners" if corners else "center and size" if center else "corner and size",
        unit=stated_units.pop() if len(stated_units) == 1 else "normalized" if open_images else "",
        stated=stated,
        difficult=_position(positions, ("difficult", "ignore")),
        crowd=_position(positions, ("crowd", "iscrowd", "isgroupof")),
        area=_position(positions, ("area",)),
    )


def _position(positions: Mapping[str, int], names: Sequence[str]) -> int | None:
    return next((positions[name] for name in names if name in positions), None)


def _four(positions: Mapping[str, int], *names: Sequence[str]) -> Corners | None:
    a, b, c, d = (_position(positions, each) for each in names)
    return None if a is None or b is None or c is None or d is None else (a, b, c, d)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_text(name: str) -> bool:
    """Return whether a cell is valid UTF-8. Invalid bytes are decoded to surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


TITLE = "CSV"
BOXES_IN = "folder"
LAYOUT = "'train.csv', 'train_labels.csv' or 'train/_annotations.csv', or a single .csv file"
_WHOLE = 1.001  # maximum value of normalized coordinates
_FORMS = {"corners": "xyxy", "corner and size": "xywh", "center and size": "cxcywh"}
_YES, _NO = {"1", "true", "yes"}, {"", "0", "-1", "false", "no"}  # -1 means "unknown" in Open Images
_BESIDE = ("_annotations.csv", "annotations.csv", "labels.csv")
_CLASSES = re.compile(r"(.*[_-])?class(es|[_-]list|[_-]descriptions.*)$", re.IGNORECASE)
_AFFIXES = re.compile(r"^oidv\d+-|(?<=.)[_-](labels?|annotations?([_-]bbox)?|bbox|boxes)$", re.IGNORECASE)
_MOST = 200  # Maximum number of CSV files to examine. A folder with more files has one file per image.
_USUAL = re.compile(r"(train|val|test|dev)", re.IGNORECASE)
_CORNERS = ("xmin", "ymin", "xmax", "ymax")

Tables = dict[str, tuple[Path, Columns]]


def recognize(root: Path) -> str:
    files = _files(root)
    for file, columns in (files[name] for name in usual_order(files)):
        if columns.box is not None or file == root or _USUAL.match(_name(file)):
            return f"'{file.name}' has columns for images and classes"
    return ""


def splits(root: Path) -> list[str]:
    return usual_order(_files(root))


def read(root: Path, split: str) -> Raw:
    files = _files(root)
    if not files:
        raise UserError(f"{root}: no CSV file with images and classes; expected {EXPECTED}")
    name = chosen(root, split, files, LAYOUT)
    file, columns = files[name]
    top = root if root.is_dir() else root.parent
    names, names_file = _stated_classes(top) or (_names_in(files), None)
    labels = {each: label for label, each in enumerate(names)}
    inside = [top / name, top / "images" / name, top / name / "images", top / "images"]
    folders = [file.parent, *inside, file.parent / "images", top / "JPEGImages", top, top.parent]
    reader = _Reader(file, ImageSearch(folders), columns=columns, labels=labels)
    reader.read()
    depends = [top, *(each for each, _ in files.values())]
    boxed = columns.box is not None
    raw = reader.raw(names, names_file, depends, "no row has an image", boxed=boxed)
    if raw.boxes is not None:
        finite = np.abs(raw.boxes[np.isfinite(raw.boxes).all(1)])
        small = len(finite) > 0 and bool((finite <= _WHOLE).all())
        raw.normalized = columns.unit == "normalized" or (not columns.unit and small)
        unit = "normalized to 0–1" if raw.normalized else "in pixels"
        raw.about.append(f"boxes are given as {columns.kind}, {unit}")
        raw.form = _FORMS[columns.kind]
    return raw


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write ``SPLIT.csv``, ``classes.csv`` and the images in ``images/SPLIT``.

    An image without boxes has a row with an empty box. ``classes.csv`` lists all classes in order, because
    some may have no boxes. If all coordinates of a split are at most 2, column names such as ``xmin_px``
    indicate that they are in pixels, not normalized.
    """
    # The splits of class folders may have different classes.
    known = list(dict.fromkeys(name for data in splits.values() for name in data.class_names))
    names, changed = fit_names(known, distinct=True)
    written = dict(zip(known, names, strict=True))
    for split, data in splits.items():
        name, classes = as_file_name(split), [written[each] for each in data.class_names]
        made = _box_rows(data, classes) if data.has_boxes else _class_rows(data, classes)
        with (out / f"{name}.csv").open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("filename", *next(made)))
            for index, given in enumerate(on_one_line(file_names(data))):
                files.put(data, index, out / "images" / name / given)
                writer.writerows((f"images/{name}/{given}", *row) for row in next(made))
    with (out / "classes.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows((name, label) for label, name in enumerate(names))
    return changed


def _files(root: Path) -> Tables:
    if root.is_file():
        columns = columns_of(root) if root.suffix.lower() in {".csv", ".tsv"} else None
        return {_name(root): (root, columns)} if columns else {}
    tables: Tables = {}
    files = sorted((*root.glob("*.csv"), *root.glob("*.tsv")))
    for file in files if len(files) <= _MOST else ():
        if file.is_file() and not _CLASSES.fullmatch(file.stem) and (columns := columns_of(file)):
            tables.setdefault("train" if file.name == _BESIDE[0] else _name(file), (file, columns))
    for folder in subfolders(root):
        for file in (folder / name for name in _BESIDE):
            if folder.name not in tables and file.is_file() and (columns := columns_of(file)):
                tables[folder.name] = (file, columns)
    return tables


def _name(file: Path) -> str:
    if file.name == _BESIDE[0]:
        return file.parent.name
    return _AFFIXES.sub("", _AFFIXES.sub("", file.stem)) or file.stem


def _stated_classes(top: Path) -> tuple[tuple[str, ...], Path] | None:
    """Return the class names in order and the file that lists them, or None if there is no such file.

    The file is a ``classes.csv`` with rows ``name,number``, as used for RetinaNet, or a ``classes.txt``.
    """
    file = next((f for f in (top / "classes.csv", top / "class_list.csv") if f.is_file()), None)
    if file is None:
        listed = names_file([top])
        return (read_names(listed), listed) if listed else None
    numbered: list[tuple[int, str]] = []
    for line, cells in rows(file, ","):
        if len(cells) > 1 and _is_whole(cells[1]):
            numbered.append((int(cells[1]), cells[0]))
        elif len(cells) > 1 and _is_whole(cells[0]):
            numbered.append((int(cells[0]), cells[1]))
        elif len(cells) == 1:
            numbered.append((len(numbered), cells[0]))
        elif numbered:  # the first row may be a header
            shown = printable(",".join(cells))
            raise UserError(f"{file}:{line}: '{shown}'; expected a class name and a number")
    names = tuple(name for _, name in sorted(numbered, key=lambda pair: pair[0]))
    if not all(map(is_text, names)):
        raise UserError(f"{file}: not valid UTF-8; expected rows such as 'cat,0' in UTF-8")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if not names or twice:
        problem = f"'{printable(twice[0])}' appears more than once" if twice else "no class names"
        raise UserError(f"{file}: {problem}; expected one row per class, such as 'cat,0'")
    return names, file


def _is_whole(cell: str) -> bool:
    return cell.isascii() and cell.isdigit() and len(cell) < 10


def _names_in(files: Tables) -> tuple[str, ...]:
    names: set[str] = set()
    for file, columns in files.values():
        for number, (_, cells) in enumerate(rows(file, columns.delimiter)):
            if (number or not columns.has_header) and columns.label < len(cells):
                has_box = columns.box is None or any(cells[at] for at in columns.box if at < len(cells))
                if has_box and cells[columns.label] and is_text(cells[columns.label]):
                    names.add(cells[columns.label])
    if not names:
        first = next(file for file, _ in files.values())
        raise UserError(f"{first}: no class names found in any split; expected {EXPECTED}")
    return tuple(in_order(names))


@dataclass
class _Reader(ListedImages):
    columns: Columns = field(kw_only=True)
    labels: dict[str, int] = field(kw_only=True)
    by_name: dict[str, int | None] = field(default_factory=dict)  # index of each image by its listed name

    def read(self) -> None:
        columns = self.columns
        width = 1 + max(columns.path, columns.label, *(columns.box or ()))
        for number, (line, cells) in enumerate(rows(self.file, columns.delimiter)):
            if number == 0 and columns.has_header:
                continue
            if len(cells) < width or not cells[columns.path]:
                shown = printable(columns.delimiter.join(cells))
                self.report(
                    "not understood",
                    f":{line}",
                    f"'{shown}'; expected at least {width} columns, including the image",
                )
                continue
            before, name = len(self.made.paths), cells[columns.path]
            if name not in self.by_name:
                plain = os.path.normpath(name.replace("\\", "/"))
                if plain not in self.by_name:
                    path = self.locate(name, f":{line}")
                    self.by_name[plain] = self.image(path, self._stated(cells)) if path else None
                self.by_name[name] = self.by_name[plain]
            image = self.by_name[name]
            if image is None:
                continue
            if columns.box is None:
                self._add_class(cells, image, line, image < before)
            else:
                self._add_box(cells, image, line, columns.box)

    def _add_class(self, cells: list[str], image: int, line: int, repeated: bool) -> None:
        label, columns = self._label(cells, line), self.columns
        if not repeated:  # an unknown class stops training in any case
            self.made.add_label(image, label or 0, line)
        elif label is not None and label == self.made.labels[image]:
            self.report("listed twice", f":{line}", printable(cells[columns.path]))
        else:
            second = printable(cells[columns.label])
            self.report("not understood", f":{line}", f"a second class '{second}'; expected one per image")

    def _add_box(self, cells: list[str], image: int, line: int, columns: Sequence[int]) -> None:
        values = [cells[each] for each in columns]
        if not any(values):
            return  # an image without boxes
        label = self._label(cells, line)
        if label is None:
            return
        try:
            a, b, c, d = map(float, values)
        except ValueError:
            self.report("not a number", f":{line}", f"'{printable(' '.join(values))}'; expected four numbers")
            return
        if self.columns.kind == "center and size":
            a, b = a - c / 2, b - d / 2
        box = (a, b, c, d) if self.columns.kind == "corners" else (a, b, a + c, b + d)
        flags = self._flag(cells, self.columns.difficult, DIFFICULT, line)
        flags |= self._flag(cells, self.columns.crowd, CROWD, line)
        self.made.add_box(image, box, label, line, flags, self._area(cells))

    def _label(self, cells: list[str], line: int) -> int | None:
        name = cells[self.columns.label]
        if name not in self.labels:
            first = one_of(printable(each) for each in list(self.labels)[:10])
            self.report("unnamed class", f":{line}", f"'{printable(name)}'; expected {first}")
        return self.labels.get(name)

    def _flag(self, cells: list[str], column: int | None, flag: int, line: int) -> int:
        if column is None or column >= len(cells):
            return 0
        value = cells[column].casefold().removesuffix(".0")
        if value not in _YES | _NO:
            self.report("not understood", f":{line}", f"'{printable(value)}'; expected 0 or 1")
        return flag if value in _YES else 0

    def _area(self, cells: list[str]) -> float:
        column = self.columns.area
        try:
            return float(cells[column]) if column is not None and column < len(cells) else NO_AREA
        except ValueError:
            return NO_AREA

    def _stated(self, cells: list[str]) -> tuple[int, int]:
        texts = [cells[at].strip() for at in self.columns.stated or () if at < len(cells)]
        sides = [(float(text) if _is_number(text) else 0) if text else None for text in texts]
        return stated_size(sides[0], sides[1]) if len(sides) == 2 else (0, 0)


def _box_rows(annotations: Annotations, names: Sequence[str]) -> Iterator[Any]:
    flags: Any = annotations.flags
    tiny = len(annotations.boxes) > 0 and bool((annotations.boxes <= 2).all())
    crowds, areas = bool((flags & CROWD).any()), bool((~np.isnan(annotations.areas)).any())
    more = (*(["crowd"] if crowds else []), *(["area"] if areas else []))
    yield "width", "height", "class", *(f"{c}_px" if tiny else c for c in _CORNERS), "difficult", *more
    for index in range(len(annotations)):
        height, width = annotations.sizes[index].tolist()
        made = []
        for box, label, flag, area in annotations.objects(index):
            cells = [width, height, names[label], *map(shortest, box), int(flag & DIFFICULT > 0)]
            cells += [int(flag & CROWD > 0)] if crowds else []
            cells += ["" if area != area else shortest(area)] if areas else []
            made.append(cells)
        yield made or [[width, height, "", "", "", "", "", "", *("" for _ in more)]]


def _class_rows(annotations: Annotations, names: Sequence[str]) -> Iterator[Any]:
    yield ("class",)
    for label in annotations.labels.tolist():
        yield [[names[label]]]
