"""Read JSON files of the VGG Image Annotator (VIA), versions 1 and 2: projects and exported annotations.

See https://www.robots.ox.ac.uk/~vgg/software/via/. Regions are in pixels. One of their attributes is the
class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rankless.data.formats import outlines
from rankless.data.formats.labeled_images import (
    NO_BOX,
    Entry,
    ListFormat,
    Parsed,
    UnknownShape,
    load_json,
    numbers,
)
from rankless.data.formats.outlines import Box
from rankless.errors import UserError, listed, printable

TITLE = "VIA JSON"
BOXES_IN = "folders"
LAYOUT = "'train/via_region_data.json' next to the images, 'train.json' with images in 'train', or one file"
_EXPECTED = "a project or exported annotations of VIA 1 or 2"
_USUAL = ("class", "label", "name", "category", "type", "object")  # usual names of the attribute of the class
_UNNAMED = "object"
_WITHOUT = ("point", "polyline", "line")


def parse(file: Path) -> Parsed:
    content = load_json(file, _EXPECTED)
    if isinstance(content, dict) and "view" in content and "metadata" in content:
        raise UserError(
            f"{file}: this is a project of VIA 3; expected {_EXPECTED}; in VIA 3, export COCO JSON, or use "
            "VIA 2"
        )
    images = content.get("_via_img_metadata", content) if isinstance(content, dict) else None
    if not isinstance(images, dict):
        raise UserError(f"{file}: no images; expected {_EXPECTED}")
    attribute = _class_attribute(file, images)
    made = [_entry(number, image, attribute) for number, image in enumerate(images.values(), 1)]
    note = f"the class of a region is its attribute '{attribute}'"
    if not attribute:
        note = f"regions have no attributes, so their class is '{_UNNAMED}'"
    return Parsed(made, notes=[note])


def _entry(number: int, image: Any, attribute: str) -> Entry:
    made = Entry(number)
    name = image.get("filename") if isinstance(image, dict) else None
    if not isinstance(name, str):
        made.report("not understood", f"{printable(str(image), 80)}; expected 'filename' and 'regions'")
        return made
    made.name = name
    for place, region in enumerate(_regions(image), 1):
        label = _value(_attributes(region).get(attribute)) if attribute else _UNNAMED
        made.add(f"region {place}", label, _shape, region.get("shape_attributes"))
    return made


def _regions(image: Any) -> Iterator[Mapping[str, Any]]:
    regions = image.get("regions") if isinstance(image, dict) else None
    regions = regions.values() if isinstance(regions, dict) else regions  # in VIA 1, a dict
    for region in regions if isinstance(regions, list | type({}.values())) else ():
        yield region if isinstance(region, dict) else {}


def _attributes(region: Mapping[str, Any]) -> Mapping[str, Any]:
    attributes = region.get("region_attributes")
    return attributes if isinstance(attributes, dict) else {}


def _value(value: Any) -> Any:
    """Return the class in the value of an attribute. Of check boxes, exactly one has to be checked."""
    if isinstance(value, dict):
        checked = [name for name, on in value.items() if on]
        return checked[0] if len(checked) == 1 else value
    return value


def _class_attribute(file: Path, images: Mapping[str, Any]) -> str:
    """Return the name of the attribute with the classes, or "" if no region has an attribute."""
    counts: Counter[str] = Counter()
    for image in images.values():
        for region in _regions(image):
            counts.update(name for name, value in _attributes(region).items() if value not in ("", None, {}))
    usual = [name for word in _USUAL for name in counts if name.casefold() == word]
    if len(counts) > 1 and not usual:
        raise UserError(
            f"{file}: regions have several attributes ({listed(sorted(counts))}); expected one of them to be "
            f"called 'class' or 'label'; rename the attribute with the class"
        )
    return usual[0] if usual else next(iter(counts), "")


def _shape(shape: Any) -> tuple[str, Box]:
    kind = shape["name"]
    if kind == "rect":
        x, y, width, height = numbers(*(shape[key] for key in ("x", "y", "width", "height")))
        return "", (x, y, x + width, y + height)
    if kind in ("circle", "ellipse"):
        keys = ("cx", "cy", "r", "r") if kind == "circle" else ("cx", "cy", "rx", "ry")
        x, y, radius_x, radius_y, radians = numbers(*(shape[key] for key in keys), shape.get("theta", 0))
        return "outline", outlines.ellipse_bounds(x, y, radius_x, radius_y, radians)
    if kind == "polygon":
        xs, ys = numbers(*shape["all_points_x"]), numbers(*shape["all_points_y"])
        return "outline", outlines.bounds(xs, ys)
    if kind in _WITHOUT:
        return NO_BOX, (0, 0, 0, 0)
    raise UnknownShape(kind, ("rect", "circle", "ellipse", "polygon", *_WITHOUT))


_FORMAT = ListFormat(TITLE, LAYOUT, ".json", parse)
recognize, splits, read = _FORMAT.recognize, _FORMAT.splits, _FORMAT.read
