"""One Pascal VOC annotation: XML that names the objects of a picture and their boxes."""

from __future__ import annotations

import math
from typing import NamedTuple
from xml.etree import ElementTree

_SIDES = ("xmin", "ymin", "xmax", "ymax")
_TRUE, _FALSE = {"1", "true"}, {"", "0", "false", "unspecified"}


class VocObject(NamedTuple):
    """One object as the file has it.

    Attributes:
        name: of its class.
        box: xmin, ymin, xmax, ymax, as written.
        difficult: whether it is too hard to count in a score.
    """

    name: str
    box: tuple[float, float, float, float]
    difficult: bool


class Annotation(NamedTuple):
    """What a file says.

    Attributes:
        objects: those without a fault, in the order of the file.
        size: (height, width) in pixels as written, None if it is missing or no numbers.
        faults: kind and sentence of everything that is wrong.
        readable: False where the file is no annotation at all, so that nobody knows its objects.
    """

    objects: list[VocObject]
    size: tuple[int, int] | None
    faults: list[tuple[str, str]]
    readable: bool = True


def parse(content: bytes) -> Annotation:
    """Read one annotation.

    A document type is refused before anything is parsed: no annotation needs one, and it is where XML can
    define entities that fill the memory or name other files.
    """
    if b"<!DOCTYPE" in content or b"\0" in content:  # zeros: UTF-16, where the guard would be blind
        found = "a document type (<!DOCTYPE) or UTF-16 text, expected plain XML in UTF-8 without one"
        return _unreadable("not allowed", found)
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # an encoding may be unknown, too
        return _unreadable("not XML", f"{error}, expected a Pascal VOC annotation")
    if root.tag != "annotation":
        return _unreadable("not VOC", f"the outermost element is <{root.tag}>, expected <annotation>")
    objects: list[VocObject] = []
    faults: list[tuple[str, str]] = []
    for number, element in enumerate(root.findall("object"), 1):
        known, wrong = _object(element, number)
        faults += wrong
        if known is not None:
            objects.append(known)
    return Annotation(objects, _size(root), faults)


def _unreadable(kind: str, found: str) -> Annotation:
    return Annotation([], None, [(kind, found)], readable=False)


def _object(element: ElementTree.Element, number: int) -> tuple[VocObject | None, list[tuple[str, str]]]:
    faults = []
    name = _text(element, "name")
    which = f"object {number} ('{name}')" if name else f"object {number}"
    if not name:
        faults.append(("no class name", f"{which} has no <name>"))
    difficult = _text(element, "difficult").lower()
    if difficult not in _TRUE | _FALSE:
        faults.append(("unknown flag", f"{which}: <difficult> is '{difficult}', expected 0 or 1"))
    box = element.find("bndbox")
    if box is None:
        faults.append(("no box", f"{which} has no <bndbox>"))
        return None, faults
    sides = []
    for side in _SIDES:
        text = _text(box, side)
        if not text:
            faults.append(("missing coordinate", f"{which} has no <{side}>, expected a number of pixels"))
            continue
        value = _number(text)
        if value is None:
            found = f"{which}: <{side}> is '{text[:40]}', expected a number of pixels"
            faults.append(("not a number", found))
        else:
            sides.append(value)
    if faults:
        return None, faults
    x1, y1, x2, y2 = sides
    return VocObject(name, (x1, y1, x2, y2), difficult in _TRUE), []


def _size(root: ElementTree.Element) -> tuple[int, int] | None:
    size = root.find("size")
    sides = [_number(_text(size, name)) for name in ("height", "width")] if size is not None else [None, None]
    height, width = sides
    return (int(height), int(width)) if height is not None and width is not None else None


def _text(element: ElementTree.Element, name: str) -> str:
    return (element.findtext(name) or "").strip()


def _number(text: str) -> float | None:
    """A finite number, or None. Pixels beyond 2³¹ are no pixels."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 2**31 else None
