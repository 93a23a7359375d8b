"""Writing a data set as COCO: ``annotations/instances_SPLIT.json`` and the images in ``images/SPLIT``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rankless.data.formats.splits import as_file_name
from rankless.data.formats.writing import ImageFiles, file_names
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.errors import UserError

_encode = msgspec.json.encode


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write COCO's JSON files; ids count from 1 and over all splits.

    A box's number is written with all its digits, and ``ignore`` marks what is difficult. Where no area is
    known, it is the box's.

    Raises:
        UserError: images with one class each, without boxes.
    """
    (out / "annotations").mkdir(parents=True)
    image = box = 1
    for split, held in splits.items():
        if not held.has_boxes:
            raise UserError("COCO JSON holds boxes, and these images have one class each and no boxes.")
        split = as_file_name(split)
        # JSON has no bytes that are no text, which a file's name can have.
        names = [name.encode("utf-8", "backslashreplace").decode() for name in file_names(held)]
        for index, name in enumerate(names):
            files.put(held, index, out / "images" / split / name)
        categories = [
            {"id": number, "name": name, "supercategory": ""}
            for number, name in enumerate(held.class_names, 1)
        ]
        with (out / "annotations" / f"instances_{split}.json").open("wb") as file:
            file.write(b'{"categories": ' + _encode(categories) + b',\n"images": [')
            _write_list(file, _images(held, names, image))
            file.write(b'],\n"annotations": [')
            _write_list(file, _boxes(held, image, box))
            file.write(b"]}\n")
        image += len(held)
        box += len(held.labels)
    return []


def _write_list(file: BinaryIO, entries: Iterator[dict[str, Any]]) -> None:
    for number, entry in enumerate(entries):
        file.write((b",\n" if number else b"\n") + _encode(entry))


def _images(annotations: Annotations, names: list[str], first: int) -> Iterator[dict[str, Any]]:
    for number, (name, (height, width)) in enumerate(
        zip(names, annotations.sizes.tolist(), strict=True), first
    ):
        yield {"id": number, "file_name": name, "width": width, "height": height}


def _boxes(annotations: Annotations, image: int, first: int) -> Iterator[dict[str, Any]]:
    for index in range(len(annotations)):
        rows = annotations.rows(index)
        for row in range(rows.start, rows.stop):
            # In float64 the sum of x and width rounds back to the same float32.
            x1, y1, x2, y2 = annotations.boxes[row].tolist()
            width, height, area = x2 - x1, y2 - y1, float(annotations.areas[row])
            flags = int(annotations.flags[row])
            entry = {
                "id": first + row,
                "image_id": image + index,
                "category_id": int(annotations.labels[row]) + 1,
                "bbox": [_plain(x1), _plain(y1), _plain(width), _plain(height)],
                "area": _plain(width * height if area != area else area),
                "iscrowd": int(flags & CROWD > 0),
            }
            yield entry | {"ignore": 1} if flags & DIFFICULT else entry


def _plain(value: float) -> float | int:
    return int(value) if value.is_integer() else value
