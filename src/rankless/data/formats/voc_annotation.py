"""One Pascal VOC annotation: XML that names the objects of an image and their boxes."""

from __future__ import annotations

import math
from typing import NamedTuple
from xml.etree import ElementTree

from rankless.errors import printable

_SIDES = ("xmin", "ymin", "xmax", "ymax")
_TRUE, _FALSE = {"1", "true"}, {"", "0", "false", "unspecified"}


class VocObject(NamedTuple):
    """One object as the file has it.

    Attributes:
        name: of its class.
        box: xmin, ymin, xmax, ymax, as written; they may be NaN or infinite.
        difficult: whether it is too hard to count in a score.
        number: which of the file's objects it is, from 1.
        outlined: whether the box is the bounds of a polygon, because no box is given.
    """

    name: str
    box: tuple[float, float, float, float]
    difficult: bool
    number: int = 1
    outlined: bool = False


class Annotation(NamedTuple):
    """What a file says.

    Attributes:
        objects: those that can be understood, in the order of the file.
        size: (height, width) in pixels as written, (0, 0) if it is missing or no numbers.
        faults: kind (of :data:`rankless.data.index.findings.KINDS`) and sentence of everything else.
        readable: False where the file is no annotation at all, so that nobody knows its objects.
    """

    objects: list[VocObject]
    size: tuple[int, int]
    faults: list[tuple[str, str]]
    readable: bool = True


def parse(content: bytes) -> Annotation:
    """Read one annotation.

    A document type is refused before anything is parsed: no annotation needs one, and it is where XML can
    define entities that fill the memory or name other files.
    """
    if b"<!DOCTYPE" in content or b"\0" in content:  # zeros: UTF-16, where the guard would be blind
        found = "a document type (<!DOCTYPE) or UTF-16 text, expected plain XML in UTF-8 without one"
        return _unreadable("unreadable file", found)
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # an encoding may be unknown, too
        return _unreadable("unreadable file", f"not XML: {error}, expected a Pascal VOC annotation")
    if root.tag != "annotation":
        found = f"the outermost element is <{printable(str(root.tag))}>, expected <annotation>"
        return _unreadable("not understood", found)
    objects: list[VocObject] = []
    faults: list[tuple[str, str]] = []
    for number, element in enumerate(root.findall("object"), 1):
        known, wrong = _object(element, number)
        faults += wrong
        if known is not None:
            objects.append(known)
    return Annotation(objects, _size(root), faults)


def _unreadable(kind: str, found: str) -> Annotation:
    return Annotation([], (0, 0), [(kind, found)], readable=False)


def _object(element: ElementTree.Element, number: int) -> tuple[VocObject | None, list[tuple[str, str]]]:
    faults = []
    name = _text(element, "name")
    which = f"object {number} ('{printable(name)}')" if name else f"object {number}"
    if not name:
        faults.append(("not understood", f"{which} has no <name>"))
    difficult = _text(element, "difficult").lower()
    if difficult not in _TRUE | _FALSE:
        found = f"{which}: <difficult> is '{printable(difficult)}', expected 0 or 1"
        faults.append(("not understood", found))
    box, polygon = element.find("bndbox"), element.find("polygon")
    if element.find("robndbox") is not None and box is None:
        faults.append(("not understood", f"{which} has a turned box (<robndbox>), expected <bndbox>"))
    elif box is None and polygon is None:
        faults.append(("not understood", f"{which} has no <bndbox>"))
    sides, wrong = _sides(box) if box is not None or polygon is None else _bounds(polygon)
    faults += [(kind, f"{which}{found}") for kind, found in wrong]
    if faults or len(sides) < 4:
        return None, faults
    x1, y1, x2, y2 = sides
    return VocObject(name, (x1, y1, x2, y2), difficult in _TRUE, number, box is None), []


def _sides(box: ElementTree.Element | None) -> tuple[list[float], list[tuple[str, str]]]:
    """The four numbers, in any order in the file, and what is wrong with them."""
    sides, wrong = [], []
    for side in _SIDES if box is not None else ():
        text = _text(box, side)
        value = _number(text)
        if not text:
            wrong.append(("not understood", f" has no <{side}>, expected a number of pixels"))
        elif value is None:
            wrong.append(
                ("not a number", f": <{side}> is '{printable(text, 40)}', expected a number of pixels")
            )
        else:
            sides.append(value)
    return sides, wrong


def _bounds(polygon: ElementTree.Element) -> tuple[list[float], list[tuple[str, str]]]:
    """The box around a polygon: ``<x1>``, ``<y1>``, ``<x2>`` … or ``<pt>`` with ``<x>`` and ``<y>``."""
    numbers: dict[str, list[float | None]] = {"x": [], "y": []}
    for point in polygon.iter():
        if point.tag[:1] in numbers and (not point.tag[1:] or point.tag[1:].isdecimal()):
            numbers[point.tag[0]].append(_number((point.text or "").strip()))
    x, y = ([value for value in values if value is not None] for values in numbers.values())
    if len(x) != len(y) or len(x) < 3 or None in numbers["x"] + numbers["y"]:
        return [], [("not understood", " has a <polygon> that is not three or more points of x and y")]
    if not all(map(math.isfinite, x + y)):
        return [math.nan] * 4, []
    return [min(x), min(y), max(x), max(y)], []


def _size(root: ElementTree.Element) -> tuple[int, int]:
    size = root.find("size")
    sides = [_number(_text(size, name)) for name in ("height", "width")] if size is not None else []
    whole = [int(side) for side in sides if side is not None and 0 < side < 2**31]
    return (whole[0], whole[1]) if len(whole) == 2 else (0, 0)


def _text(element: ElementTree.Element | None, name: str) -> str:
    return (element.findtext(name) or "").strip() if element is not None else ""


def _number(text: str) -> float | None:
    """A number, or None; Python itself would read ``1_0`` as 10."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
