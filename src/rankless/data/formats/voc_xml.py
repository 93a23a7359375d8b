"""Parse and write Pascal VOC annotation files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from rankless.data.formats import outlines
from rankless.data.formats.writing import shortest
from rankless.data.index.raw import stated_size
from rankless.errors import printable

SIDES = ("xmin", "ymin", "xmax", "ymax")
NOT_XML = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")  # characters that XML cannot contain
_DECLARED = re.compile(rb"""\s*<\?xml[^>]*\sencoding\s*=\s*["']([\w.-]+)""")
_MULTIBYTE = {"gb2312": "gb18030", "gbk": "gb18030"} | {
    name: name for name in ("gb18030", "big5", "shift_jis", "euc-jp", "euc-kr")
}
"""Declared encodings that the XML parser does not know, and the codecs that read them."""
_TRUE, _FALSE = {"1", "true"}, {"", "0", "false", "unspecified"}


class VocObject(NamedTuple):
    """One object as written in an annotation file; box coordinates may be NaN or infinite."""

    name: str
    box: tuple[float, float, float, float]
    difficult: bool
    number: int = 1


class Annotation(NamedTuple):
    """The contents of an annotation file.

    Attributes:
        size: (height, width) of the image; see :func:`rankless.data.index.raw.stated_size`.
        problems: pairs of a kind of problem, from :data:`rankless.data.index.findings.KINDS`, and a sentence.
        readable: whether the file is an annotation file.
        first_pixel: number of the first pixel: 1 in Pascal VOC; 0 in files from CVAT and Label Studio, where
            ``xmax`` and ``ymax`` are the right and lower edges.
    """

    objects: list[VocObject]
    size: tuple[int, int]
    problems: list[tuple[str, str]]
    readable: bool = True
    first_pixel: int = 1


def xml_root(content: bytes) -> ElementTree.Element:
    """Parse XML and return its root element; raise ValueError with a sentence if it is invalid.

    Files with a document type are rejected before parsing, because its entities could exhaust the memory or
    refer to other files.
    """
    try:
        text = content if b"\0" in content else _decoded(content)
    except UnicodeDecodeError as error:
        declaration = f'<?xml version="1.0" encoding="{"GBK" if error.encoding == "utf-8" else "UTF-8"}"?>'
        raise ValueError(
            f"not {error.encoding.upper()} text (byte {error.start}: {error.reason}); save the file as "
            f"UTF-8, or declare its encoding in the first line, as in {declaration}"
        ) from None
    # NUL indicates UTF-16, which could hide a document type.
    if b"\0" in content or b"<!DOCTYPE" in content or (isinstance(text, str) and "<!DOCTYPE" in text):
        raise ValueError(
            "found a document type (<!DOCTYPE) or UTF-16 text; expected UTF-8 without a document type"
        )
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: unknown encoding
        raise ValueError(f"not XML: {error}; expected an annotation file") from None


def parse(content: bytes) -> Annotation:
    """Parse the contents of an annotation file."""
    try:
        root = xml_root(content)
    except ValueError as error:
        return unreadable("unreadable file", str(error))
    if root.tag != "annotation":
        problem = f"the root element is <{printable(str(root.tag))}>; expected <annotation>"
        return unreadable("not understood", problem)
    problems: list[tuple[str, str]] = []
    elements = enumerate(root.findall("object"), 1)
    objects = [known for number, element in elements if (known := _object(element, number, problems))]
    return Annotation(objects, _size(root), problems, first_pixel=_first_pixel(root))


def _decoded(content: bytes) -> str | bytes:
    """Decode text in an encoding that the XML parser does not know, and check UTF-8 text."""
    declared = _DECLARED.match(content)
    encoding = declared[1].decode().lower() if declared else "utf-8"
    if encoding in _MULTIBYTE:
        return content.decode(_MULTIBYTE[encoding])
    if encoding == "utf-8":
        content.decode()
    return content


def _first_pixel(root: ElementTree.Element) -> int:
    of_cvat = all(_text(root, f"source/{name}") == "Unknown" for name in ("database", "annotation", "image"))
    return 0 if of_cvat or _text(root, "owner/name") == "Label Studio" else 1


def to_xml(name: str, size: tuple[int, int], objects: Iterable[VocObject]) -> bytes:
    """Return the contents of an annotation file. Pixels count from 1 in the file and from 0 in ``objects``.

    If ``size`` (height, width) is (0, 0), it is omitted.
    """
    root = ElementTree.Element("annotation")
    _add(root, "filename", name)
    if all(size):
        element = ElementTree.SubElement(root, "size")
        for side, value in (("width", size[1]), ("height", size[0]), ("depth", 3)):
            _add(element, side, str(value))
    for one in objects:
        thing = ElementTree.SubElement(root, "object")
        _add(thing, "name", one.name)
        _add(thing, "difficult", str(int(one.difficult)))
        sides = ElementTree.SubElement(thing, "bndbox")
        x1, y1, x2, y2 = one.box
        for side, number in zip(SIDES, (x1 + 1, y1 + 1, x2, y2), strict=True):
            _add(sides, side, shortest(number))
    ElementTree.indent(root, "\t")
    return bytes(ElementTree.tostring(root, "utf-8"))


def _add(parent: ElementTree.Element, tag: str, text: str) -> None:
    ElementTree.SubElement(parent, tag).text = text


def unreadable(kind: str, problem: str) -> Annotation:
    return Annotation([], (0, 0), [(kind, problem)], readable=False)


def _object(element: ElementTree.Element, number: int, problems: list[tuple[str, str]]) -> VocObject | None:
    name = _text(element, "name")
    which = f"object {number} ('{printable(name)}')" if name else f"object {number}"
    before = len(problems)

    def report(kind: str, problem: str) -> None:
        problems.append((kind, f"{which}{problem}"))

    if not name:
        report("not understood", " has no <name>")
    for tag in ("name", "bndbox"):
        if (count := len(element.findall(tag))) > 1:
            report("not understood", f" has {count} <{tag}> elements; expected one; make an <object> of each")
    difficult = _text(element, "difficult").lower()
    if difficult not in _TRUE | _FALSE:
        report("not understood", f": <difficult> is '{printable(difficult)}'; expected 0 or 1")
    box, polygon = element.find("bndbox"), element.find("polygon")
    sides: Sequence[float] = ()
    if box is not None:
        sides = _sides(box, report)
    elif element.find("robndbox") is not None:
        report("not understood", " has a rotated box (<robndbox>); expected <bndbox>")
    elif polygon is not None:
        sides = _bounds(polygon, report)
    else:
        report("not understood", " has no <bndbox>")
    degrees = _degrees(element, report)
    if len(problems) > before:
        return None
    if box is None:
        report("outline", "")
    x1, y1, x2, y2 = sides
    if degrees:
        x1, y1, x2, y2 = outlines.rotated_bounds((x1, y1, x2, y2), degrees)
        report("turned", "")
    return VocObject(name, (x1, y1, x2, y2), difficult in _TRUE, number)


def _degrees(element: ElementTree.Element, report: Callable[[str, str], None]) -> float:
    for attribute in element.iterfind("attributes/attribute"):
        if _text(attribute, "name") == "rotation":
            text = _text(attribute, "value")
            if (degrees := to_float(text)) is None:
                report("not a number", f": the rotation is '{printable(text, 40)}'; expected degrees")
            return degrees or 0.0
    return 0.0


def _sides(box: ElementTree.Element, report: Callable[[str, str], None]) -> list[float]:
    sides = []
    for side in SIDES:
        text = _text(box, side)
        value = to_float(text)
        if not text:
            report("not understood", f" has no <{side}>; expected a number of pixels")
        elif value is None:
            report("not a number", f": <{side}> is '{printable(text, 40)}'; expected a number of pixels")
        else:
            sides.append(value)
    return sides


def _bounds(polygon: ElementTree.Element, report: Callable[[str, str], None]) -> Sequence[float]:
    """Return the bounds of a polygon of ``<x1>``, ``<y1>``, … or of ``<pt>`` with ``<x>`` and ``<y>``."""
    numbers: dict[str, list[float | None]] = {"x": [], "y": []}
    for point in polygon.iter():
        if point.tag[:1] in numbers and (not point.tag[1:] or point.tag[1:].isdecimal()):
            numbers[point.tag[0]].append(to_float((point.text or "").strip()))
    x, y = ([value for value in values if value is not None] for values in numbers.values())
    if len(x) != len(y) or len(x) < 3 or None in numbers["x"] + numbers["y"]:
        report("not understood", " has an invalid <polygon>; expected at least three points with x and y")
        return ()
    return outlines.bounds(x, y)


def _size(root: ElementTree.Element) -> tuple[int, int]:
    texts = [_text(root.find("size"), name) for name in ("height", "width")]
    height, width = ((to_float(text) or 0) if text else None for text in texts)
    return stated_size(height, width)


def _text(element: ElementTree.Element | None, name: str) -> str:
    return (element.findtext(name) or "").strip() if element is not None else ""


def to_float(text: str) -> float | None:
    """Parse a number; return None for other text, including ``1_0``, which Python accepts as 10."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
