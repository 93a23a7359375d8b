"""What a sample of a shard says about its image: a class, or boxes as JSON or as Darknet's lines."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from rankless.data.index.annotations import CROWD
from rankless.errors import printable


class LabelError(ValueError):
    """A label that is not of the format; its text says what was found and what was expected."""


class Row(NamedTuple):
    """One box of an image.

    Attributes:
        box: xyxy; in pixels, of Darknet's lines normalized by the image's sides.
        label: a class number or name, as text.
        flags, area: as in :class:`rankless.data.index.annotations.Annotations`.
    """

    box: list[float]
    label: str
    flags: int = 0
    area: float = float("nan")


Rows = tuple[list[Row], tuple[int, int]]
"""Boxes, and the image's height and width; 0, 0 if they are not stated."""


def class_of(content: bytes) -> str:
    """Number or name of the class in a member ``.cls``."""
    text = _text(content).strip()
    if not text or "\n" in text:
        raise LabelError(f"'{printable(text)}'; expected the number or the name of a class")
    return _number_or_name(text)


def rows_of(content: bytes, kind: str) -> Rows:
    """The boxes in a member ``.json`` or ``.txt``."""
    try:
        return _of_lines(_text(content)) if kind == "txt" else _of_json(json.loads(_text(content)))
    except LabelError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise LabelError(f"{printable(str(error))}; expected JSON or Darknet's lines") from error


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LabelError(f"{content[:20]!r}; expected UTF-8") from error


def _of_lines(text: str) -> Rows:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        columns = line.split()
        if not columns:
            continue
        expected = "expected five columns: class x y width height"
        if len(columns) != 5:
            raise LabelError(f"line {number}: '{printable(line)}'; {expected}")
        try:
            x, y, w, h = map(float, columns[1:])
        except ValueError as error:
            raise LabelError(f"line {number}: '{printable(line)}'; {expected}") from error
        rows.append(Row([x - w / 2, y - h / 2, x + w / 2, y + h / 2], _number_or_name(columns[0])))
    return rows, (0, 0)


def _of_json(value: Any) -> Rows:
    if isinstance(value, list):
        value = {"annotations": value}
    if not isinstance(value, dict) or not ({"boxes", "annotations"} & set(value)):
        raise LabelError("no 'boxes' with 'labels', and no 'annotations' in it")
    stated = _side(value.get("height") or 0), _side(value.get("width") or 0)
    made: list[Row] = []
    if "boxes" in value:
        columns = [value["boxes"], value.get("labels")]
        if isinstance(columns[0], list):
            columns += [value.get(name) or [None] * len(columns[0]) for name in ("flags", "areas")]
        if not all(isinstance(each, list) for each in columns) or len(set(map(len, columns))) > 1:
            raise LabelError("expected lists 'boxes' and 'labels' (and 'flags', 'areas') of one length")
        rows = zip(*columns, strict=True)
        return [
            Row(_four(box), _label(label), _flag(flag), _area(area)) for box, label, flag, area in rows
        ], stated
    if not isinstance(value["annotations"], list):
        raise LabelError("expected 'annotations' to be a list")
    for each in value["annotations"]:
        if not isinstance(each, dict):
            raise LabelError("expected 'annotations' with 'bbox' and 'category_id'")
        x, y, w, h = _four(each.get("bbox"))
        crowd = CROWD if each.get("iscrowd") else 0
        label, area = _label(each.get("category_id")), _area(each.get("area"))
        made.append(Row([x, y, x + w, y + h], label, crowd, area))
    return made, stated


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _four(box: Any) -> list[float]:
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        raise LabelError(f"a box is {printable(repr(box))}; expected four numbers")
    return [float(value) for value in box]


def _label(label: Any) -> str:
    if isinstance(label, bool) or not isinstance(label, int | str) or label == "":
        raise LabelError(f"a label is {printable(repr(label))}; expected the number or name of a class")
    return _number_or_name(str(label))


def _flag(flag: Any) -> int:
    if flag is not None and (isinstance(flag, bool) or flag not in (0, 1, 2, 3)):
        raise LabelError(f"a flag is {printable(repr(flag))}; expected 1 difficult, 2 a crowd, or both")
    return int(flag or 0)


def _area(area: Any) -> float:
    if area is not None and not _is_number(area):
        raise LabelError(f"an area is {printable(repr(area))}; expected a number of pixels")
    return float("nan") if area is None else float(area)


def _side(side: Any) -> int:
    if not isinstance(side, int) or isinstance(side, bool) or not 0 <= side < 2**31:
        raise LabelError(f"the height or width is {printable(repr(side))}; expected a number of pixels")
    return side


def _number_or_name(text: str) -> str:
    """Numbers in one form: ``007`` and ``7`` are one class."""
    return str(int(text)) if is_number(text) else text


def is_number(text: str) -> bool:
    """Whether a class is a number, and not a name."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 19
