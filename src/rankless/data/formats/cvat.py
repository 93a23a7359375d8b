"""Read "CVAT for images 1.1": one XML file with the images of all subsets and their shapes in pixels.

See https://docs.cvat.ai/docs/manual/advanced/xml_format/. "CVAT for video 1.1", which contains tracks, is
refused. CVAT also exports the frames of videos in the format for images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from rankless.data.formats import outlines
from rankless.data.formats.labeled_images import NO_BOX, Entry, ListFormat, Parsed, by_split
from rankless.data.formats.outlines import Box
from rankless.data.formats.splits import usual_order
from rankless.data.formats.voc_xml import to_float, xml_root
from rankless.data.index.raw import stated_size
from rankless.errors import UserError
from rankless.files import reading

TITLE = "CVAT XML"
BOXES_IN = "folders"
LAYOUT = "'annotations.xml' (CVAT for images 1.1) with the images in 'images', or one such file"
_NO_BOXES = ("points", "polyline", "cuboid", "skeleton", "tag")
_SHAPES = ("box", "polygon", "ellipse", "mask", *_NO_BOXES)


def parse(file: Path) -> Parsed:
    try:
        root = xml_root(reading.read_bytes(file))
        if root.tag != "annotations":
            raise ValueError(f"the root element is <{root.tag}>; expected <annotations>")
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {reading.reason(error)}; expected {LAYOUT}") from None
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None
    if root.find("track") is not None:
        raise UserError(
            f"{file}: contains tracks of a video (<track>); expected images; in CVAT, export the task as "
            "'CVAT for images 1.1'"
        )
    subset = (root.findtext("meta/task/subset") or "").strip()
    return Parsed(
        [_entry(image, number, subset) for number, image in enumerate(root.iterfind("image"))], _labels(root)
    )


def _labels(root: ElementTree.Element) -> list[str]:
    """Return the declared labels in order, without parts of skeletons and labels for shapes without a box."""
    made: list[str] = []
    for label in root.iterfind("meta/*/labels/label"):
        name, kind = ((label.findtext(key) or "").strip() for key in ("name", "type"))
        if name and kind not in _NO_BOXES and label.find("parent") is None:
            made.append(name)
    return made


def _entry(image: ElementTree.Element, number: int, subset: str) -> Entry:
    identity = image.get("id", "")
    made = Entry(
        int(identity) if identity.isascii() and identity.isdigit() and len(identity) < 18 else number
    )
    made.split = image.get("subset", subset).strip()
    made.name = image.get("name", "")
    if not made.name.strip():
        made.name = ""
        made.report("not understood", "<image> has no 'name'; expected the name of a file")
        return made
    sides = (image.get(side) for side in ("height", "width"))
    made.size = stated_size(*(None if side is None else to_float(side) or 0 for side in sides))
    for place, shape in enumerate(image, 1):
        if shape.tag in _SHAPES:
            made.add(f"<{shape.tag}> {place}", shape.get("label"), _shape, shape)
        else:
            made.report("not understood", f"<{shape.tag}>; expected one of {', '.join(_SHAPES)}")
    return made


def _shape(shape: ElementTree.Element) -> tuple[str, Box]:
    degrees = _number(shape.get("rotation", "0"))
    if shape.tag == "box":
        x1, y1, x2, y2 = _numbers(shape, ("xtl", "ytl", "xbr", "ybr"))
        if degrees:
            return "turned", outlines.rotated_bounds((x1, y1, x2, y2), degrees)
        return "", (x1, y1, x2, y2)
    if shape.tag == "polygon":
        points = [[_number(text) for text in point.split(",")] for point in shape.attrib["points"].split(";")]
        return "outline", outlines.bounds([x for x, _ in points], [y for _, y in points])
    if shape.tag == "ellipse":
        x, y, radius_x, radius_y = _numbers(shape, ("cx", "cy", "rx", "ry"))
        return "outline", outlines.ellipse_bounds(x, y, radius_x, radius_y, math.radians(degrees))
    if shape.tag == "mask":
        x, y, width, height = _numbers(shape, ("left", "top", "width", "height"))
        return "outline", (x, y, x + width, y + height)
    return NO_BOX, (0, 0, 0, 0)


def _numbers(shape: ElementTree.Element, keys: Iterable[str]) -> list[float]:
    return [_number(shape.attrib[key]) for key in keys]


def _number(text: str) -> float:
    value = to_float(text)
    if value is None:
        raise ValueError(text)
    return value


_FORMAT = ListFormat(TITLE, LAYOUT, ".xml", parse)
recognize, read = _FORMAT.recognize, _FORMAT.read


def splits(root: Path) -> list[str]:
    """Return the subsets. Images without a subset belong to the split of their file, usually ``train``."""
    return usual_order(by_split({name: parse(file) for name, file in _FORMAT.files(root).items()}))
