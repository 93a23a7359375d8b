"""Read CreateML JSON: a list of images, each with boxes that are given by their center and size in pixels.

See https://developer.apple.com/documentation/createml/building-an-object-detector-data-source. Roboflow
writes ``_annotations.createml.json`` next to the images of each split.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankless.data.formats.labeled_images import Entry, ListFormat, Parsed, load_json, numbers
from rankless.data.formats.outlines import Box
from rankless.errors import UserError, printable

TITLE = "CreateML JSON"
BOXES_IN = "folders"
LAYOUT = (
    "'train/_annotations.createml.json' next to the images, 'train.json' with images in 'train', or one file"
)
_EXPECTED = "a list of objects with 'image' and 'annotations'"


def parse(file: Path) -> Parsed:
    images = load_json(file, _EXPECTED)
    if not isinstance(images, list):
        raise UserError(f"{file}: not a list; expected {_EXPECTED}")
    return Parsed([_entry(number, image) for number, image in enumerate(images, 1)])


def _entry(number: int, image: Any) -> Entry:
    made = Entry(number)
    values = image if isinstance(image, dict) else {}
    name = values.get("image") or values.get("imagefilename")
    objects = values.get("annotations", values.get("annotation", []))
    if not isinstance(name, str) or not isinstance(objects, list):
        made.report("not understood", f"{printable(str(image), 80)}; expected 'image' and 'annotations'")
        return made
    made.name = name
    for place, each in enumerate(objects, 1):
        values = each if isinstance(each, dict) else {}
        made.add(f"annotation {place}", values.get("label"), _box, values.get("coordinates"))
    return made


def _box(coordinates: Any) -> tuple[str, Box]:
    x, y, width, height = numbers(*(coordinates[key] for key in ("x", "y", "width", "height")))
    return "", (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


_FORMAT = ListFormat(TITLE, LAYOUT, ".json", parse)
recognize, splits, read = _FORMAT.recognize, _FORMAT.splits, _FORMAT.read
