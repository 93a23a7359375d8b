"""What the columns of a CSV file mean: by the names in its first row, or by RetinaNet's fixed order.

Names are compared without case and signs: ``image_id``, ``ImageID`` and ``Image Id`` are the same.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rankless.data.images.image_file import is_image
from rankless.errors import UserError
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
_CX, _CY = ("xcenter", "xcenter", "centerx", "cx", "xc"), ("ycenter", "ycenter", "centery", "cy", "yc")
_W, _H = ("w", "bw", "boxwidth", "bboxwidth", "bboxw"), ("h", "bh", "boxheight", "bboxheight", "bboxh")
_UNITS = (
    ("px", "pixels"),
    ("pixels", "pixels"),
    ("norm", "normalized"),
    ("normalized", "normalized"),
    ("rel", "normalized"),
)


@dataclass(frozen=True)
class Columns:
    """The positions of the columns in a row; None where there is no such column.

    Attributes:
        delimiter: between two cells.
        has_header: whether the first row holds the columns' names.
        path, label: the image and the class.
        box: the four numbers of a box; None where an image has one class and no boxes.
        kind: what these are: two corners, a corner and a size, or the center and a size.
        unit: ``pixels``, or ``normalized`` by the image's sides; empty where only the values can tell.
        stated: height and width of the image.
        difficult, crowd, area: of the object.
    """

    delimiter: str
    has_header: bool
    path: int
    label: int
    box: Corners | None = None
    kind: Literal["corners", "corner and size", "center and size"] = "corners"
    unit: str = ""
    stated: tuple[int, int] | None = None
    difficult: int | None = None
    crowd: int | None = None
    area: int | None = None


def rows(file: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells of the rows that are not empty, without spaces around the cells."""
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
    """The columns of a file; None if it lists no images and classes, or cannot be read."""
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
        for ending, unit in _UNITS:
            if name.endswith(ending) and name != ending:
                name = name.removesuffix(ending)
                units[position] = unit
        positions.setdefault(name, position)
    path, label = _position(positions, _PATH), _position(positions, _LABEL)
    if path is None or label is None:
        return None
    corners = _four(positions, _LEFT, _TOP, _RIGHT, _BOTTOM)
    # A width beside a corner, without the other corner, can only be the box's.
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
    """Whether a cell was written in UTF-8; bytes that were not are surrogates in it."""
    return not any("\ud800" <= character <= "\udfff" for character in name)
