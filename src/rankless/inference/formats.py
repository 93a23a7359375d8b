"""Write the predictions in the journal in several formats.

The writers read the entries once or twice and keep none of them in memory.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TextIO

from rankless.data.formats.voc_xml import NOT_XML, VocObject, to_xml
from rankless.data.formats.writing import on_one_line
from rankless.errors import UserError, nearest, one_of, printable

KINDS = (
    *("annotated", "json", "jsonl", "coco", "yolo", "voc", "label-studio", "cvat"),
    *("csv", "counts", "crops", "heatmaps"),
)
"""The values that ``--save`` accepts."""


def kinds_named(save: Sequence[str], option: str = "--save") -> frozenset[str]:
    """Return the values of ``--save`` as a set. Error messages name ``option``."""
    if unknown := [name for name in save if name not in KINDS]:
        raise UserError(
            f"{option} contains '{printable(name)}'; expected {one_of(KINDS)}{nearest(name, KINDS)}"
            for name in unknown
        )
    if not save:
        raise UserError(f"{option} is empty; expected one or more of {', '.join(KINDS)}")
    return frozenset(save)


class Entry(NamedTuple):
    """The predictions for one image.

    Attributes:
        stem: name of the image's files without extension, including the number of a video frame.
        image: the object for the image in ``predictions.json``.
    """

    stem: str
    image: dict[str, Any]


Entries = Callable[[], Iterator[Entry]]
"""A function that returns a new iterator over all entries."""


def write_json(entries: Entries, file: Path) -> None:
    """Write a JSON array with one image per line."""
    with file.open("w", encoding="utf-8") as out:
        _write_list(out, (entry.image for entry in entries()))


def write_jsonl(entries: Entries, file: Path) -> None:
    """Write JSON Lines with one object per image."""
    with file.open("w", encoding="utf-8") as out:
        out.writelines(f"{json.dumps(entry.image)}\n" for entry in entries())


def write_coco_images(entries: Entries, file: Path, class_names: Sequence[str]) -> None:
    """Write the images and categories in COCO's format, without annotations."""
    categories = [{"id": number, "name": name} for number, name in enumerate(class_names, 1)]
    images = (
        {
            "id": number,
            "file_name": PurePath(entry.image["source"]).name,
            "width": entry.image["width"],
            "height": entry.image["height"],
        }
        for number, entry in image_ids(entries)
    )
    with file.open("w", encoding="utf-8") as out:
        out.write(f'{{"categories": {json.dumps(categories)},\n"annotations": [],\n"images": ')
        _write_list(out, images, "}")


def write_coco_results(entries: Entries, file: Path) -> None:
    """Write the detections in COCO's format for results."""
    results = (
        {
            "image_id": number,
            "category_id": found["label"] + 1,
            "bbox": [x1, y1, round(x2 - x1, 2), round(y2 - y1, 2)],
            "score": found["score"],
        }
        for number, entry in image_ids(entries)
        for found in entry.image["detections"]
        for x1, y1, x2, y2 in [found["box"]]
    )
    with file.open("w", encoding="utf-8") as out:
        _write_list(out, results)


def image_ids(entries: Entries) -> Iterator[tuple[int, Entry]]:
    """Yield all entries with COCO ids: the file names if they are distinct numbers, otherwise 1, 2, 3 …"""
    seen: set[int] = set()
    numbered = True
    for entry in entries():
        number = int(entry.stem) if entry.stem.isdecimal() and len(entry.stem) < 16 else -1
        numbered = number > 0 and number not in seen
        if not numbered:
            break
        seen.add(number)
    for position, entry in enumerate(entries(), 1):
        yield int(entry.stem) if numbered else position, entry


def yolo_text(image: dict[str, Any]) -> str:
    """Return one line per box: the class, then center x, center y, width and height relative to the image."""
    width, height = image["width"], image["height"]
    return "".join(
        f"{found['label']} {(x1 + x2) / 2 / width:.6f} {(y1 + y2) / 2 / height:.6f} "
        f"{(x2 - x1) / width:.6f} {(y2 - y1) / height:.6f}\n"
        for found in image["detections"]
        for x1, y1, x2, y2 in [found["box"]]
    )


def yolo_names(class_names: Iterable[str]) -> str:
    """Return the content of ``classes.txt``: one class name per line."""
    return "".join(f"{name}\n" for name in on_one_line(class_names))


def voc_xml(image: dict[str, Any]) -> bytes:
    """Return the Pascal VOC annotation of an image, with U+FFFD for characters that XML does not allow."""
    objects = (
        VocObject(NOT_XML.sub("\ufffd", found["name"]), tuple(found["box"]), difficult=False)
        for found in image["detections"]
    )
    name = NOT_XML.sub("\ufffd", PurePath(image["source"]).name)
    return to_xml(name, (image["height"], image["width"]), objects)


def write_csv(entries: Entries, file: Path) -> None:
    """Write a CSV table with one row per object, or per class of a classified image."""
    head = ["source", "frame", "time", "label", "name", "score"]
    with file.open("w", encoding="utf-8", errors="surrogateescape", newline="") as out:
        rows = csv.writer(out)
        rows.writerow([*head, "x1", "y1", "x2", "y2"])
        for _, image in entries():
            where = [image["source"], image.get("frame", ""), image.get("time", "")]
            for found in image.get("detections", []) or image.get("classes", []):
                what = [found["label"], found["name"], found["score"]]
                rows.writerow([*where, *what, *found.get("box", ["", "", "", ""])])


def write_counts(entries: Entries, file: Path, class_names: Sequence[str]) -> None:
    """Write a CSV table with the number of objects in each image, in total and per class."""
    with file.open("w", encoding="utf-8", errors="surrogateescape", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["source", "frame", "time", "total", *class_names])
        for _, image in entries():
            # A classified image counts as one object of its best class.
            found = image.get("detections", []) or image.get("classes", [])[:1]
            counts = Counter(one["label"] for one in found)
            per_class = [counts[label] for label in range(len(class_names))]
            where = [image["source"], image.get("frame", ""), image.get("time", "")]
            rows.writerow([*where, len(found), *per_class])


def _write_list(out: TextIO, items: Iterable[Any], end: str = "") -> None:
    out.write("[")
    for number, item in enumerate(items):
        out.write((",\n" if number else "\n") + json.dumps(item))
    out.write(f"\n]{end}\n")
