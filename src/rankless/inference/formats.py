"""Write the predictions of a journal in several formats.

The writers iterate over the entries once or twice and keep none of them in memory.

Label Studio's tasks contain boxes as percentages of the image size, and match the labeling interface in
``label_studio_config.xml``. CVAT imports ``cvat.xml`` as "CVAT 1.1" into a task with the same images. Both
identify an image by its path relative to the folder that contains all images.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, TextIO
from urllib.parse import quote
from xml.etree import ElementTree

from rankless.data.formats.voc_xml import NOT_XML, VocObject, to_xml
from rankless.data.formats.writing import on_one_line
from rankless.errors import UserError, counted, nearest, one_of, printable
from rankless.inference.prediction_journal import Entry, Journal

KINDS = (
    *("annotated", "json", "jsonl", "coco", "yolo", "voc", "label-studio", "cvat"),
    *("csv", "counts", "crops", "heatmaps"),
)
"""The values that ``--save`` accepts."""
OF_BOXES = frozenset({"coco", "yolo", "voc", "crops"})
OF_ANY_TASK = frozenset({"annotated", "json", "jsonl"})
_FOR_LABELING = frozenset({"label-studio", "cvat"})
_FROM, _TO = "label", "image"
_NO_FILE = "from a video, a stream, the built-in data, a shard or a Parquet file"


def kinds_named(save: Sequence[str], option: str = "--save") -> frozenset[str]:
    """Return the values of ``--save`` as a set. Error messages mention ``option``."""
    if unknown := [name for name in save if name not in KINDS]:
        raise UserError(
            f"{option} contains '{printable(name)}'; expected {one_of(KINDS)}{nearest(name, KINDS)}"
            for name in unknown
        )
    if not save:
        raise UserError(f"{option} is empty; expected one or more of {', '.join(KINDS)}")
    return frozenset(save)


def best_of(image: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an image's detections, or its most likely class."""
    found: list[dict[str, Any]] = image.get("detections") or image.get("classes", [])[:1]
    return found


def write_json(entries: Journal, file: Path) -> None:
    """Write a JSON array with one image per line."""
    with file.open("w", encoding="utf-8") as out:
        _write_list(out, (entry.image for entry in entries))


def write_jsonl(entries: Journal, file: Path) -> None:
    """Write JSON Lines with one object per image."""
    with file.open("w", encoding="utf-8") as out:
        out.writelines(f"{json.dumps(entry.image)}\n" for entry in entries)


def write_coco_images(entries: Journal, file: Path, class_names: Sequence[str]) -> None:
    """Write the images and categories in COCO's format, without annotations.

    If two files have the same name, all names are paths relative to the folder that contains all images.
    """
    files = {_absolute(entry.image) for entry in entries if _is_file(entry.image)}
    repeated = len({PurePath(file).name for file in files}) < len(files)
    root = Labeling(entries, class_names, "").root if repeated else Path()
    categories = [{"id": number, "name": name} for number, name in enumerate(class_names, 1)]
    images = (
        {
            "id": number,
            "file_name": os.path.relpath(_absolute(entry.image), root)
            if repeated and _is_file(entry.image)
            else PurePath(entry.image["source"]).name,
            "width": entry.image["width"],
            "height": entry.image["height"],
        }
        for number, entry in image_ids(entries)
    )
    with file.open("w", encoding="utf-8") as out:
        out.write(f'{{"categories": {json.dumps(categories)},\n"annotations": [],\n"images": ')
        _write_list(out, images, "}")


def write_coco_results(entries: Journal, file: Path) -> None:
    """Write the detections in COCO's results format."""
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


def image_ids(entries: Journal) -> Iterator[tuple[int, Entry]]:
    """Yield all entries with COCO ids: the file names if they are distinct numbers, otherwise 1, 2, 3 …"""
    seen: set[int] = set()
    numbered = True
    for entry in entries:
        number = int(entry.stem) if entry.stem.isdecimal() and len(entry.stem) < 16 else -1
        numbered = number > 0 and number not in seen
        if not numbered:
            break
        seen.add(number)
    for position, entry in enumerate(entries, 1):
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
    """Return the contents of ``classes.txt``: one class name per line."""
    return "".join(f"{name}\n" for name in on_one_line(class_names))


def voc_xml(image: dict[str, Any]) -> bytes:
    """Return the Pascal VOC annotation of an image, with U+FFFD for characters that XML does not allow."""
    objects = (
        VocObject(_plain(found["name"]), tuple(found["box"]), difficult=False)
        for found in image["detections"]
    )
    return to_xml(_plain(PurePath(image["source"]).name), (image["height"], image["width"]), objects)


def write_csv(entries: Journal, file: Path) -> None:
    """Write a CSV table with one row per object, or per class of a classified image."""
    rows = (
        [*_where(image), found["label"], found["name"], found["score"], *found.get("box", [""] * 4)]
        for _, image in entries
        for found in image.get("detections", []) or image.get("classes", [])
    )
    _write_table(file, ["source", "frame", "time", "label", "name", "score", "x1", "y1", "x2", "y2"], rows)


def write_counts(entries: Journal, file: Path, class_names: Sequence[str]) -> None:
    """Write a CSV table with the number of objects in each image, in total and per class.

    A classified image counts as one object of its best class.
    """
    counts = ((image, Counter(one["label"] for one in best_of(image))) for _, image in entries)
    rows = (
        [*_where(image), count.total(), *(count[label] for label in range(len(class_names)))]
        for image, count in counts
    )
    _write_table(file, ["source", "frame", "time", "total", *class_names], rows)


def _where(image: dict[str, Any]) -> list[Any]:
    return [image["source"], image.get("frame", ""), image.get("time", "")]


def _write_table(file: Path, head: list[str], rows: Iterable[list[Any]]) -> None:
    with file.open("w", encoding="utf-8", errors="surrogateescape", newline="") as out:
        csv.writer(out).writerows(itertools.chain([head], rows))


def _write_list(out: TextIO, items: Iterable[Any], end: str = "") -> None:
    out.write("[")
    for number, item in enumerate(items):
        out.write((",\n" if number else "\n") + json.dumps(item))
    out.write(f"\n]{end}\n")


class Labeling:
    """Pre-annotations from one prediction, for the images that are files.

    ``model`` is the model version to show in Label Studio.
    """

    def __init__(self, entries: Journal, class_names: Sequence[str], model: str) -> None:
        self._entries, self._names, self._model = entries, [_plain(name) for name in class_names], model

    @cached_property
    def root(self) -> Path:
        """The deepest folder that contains all images."""
        folders = {os.path.dirname(_absolute(image)) for _, image in self._entries if _is_file(image)}  # noqa: PTH120
        return Path(os.path.commonpath(folders)) if folders else Path.cwd()

    def notes(self, kinds: frozenset[str]) -> Iterator[str]:
        """Yield messages that explain how to import the files."""
        if "label-studio" in kinds:
            yield (
                "to import label_studio.json, start Label Studio with "
                "LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and "
                f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={self.root.parent}, and add the local storage "
                f"{self.root}"
            )
        if kinds & _FOR_LABELING and (left_out := sum(not _is_file(image) for _, image in self._entries)):
            images = counted(left_out, "image is", "images are")
            yield f"{images} {_NO_FILE}, and cannot be added to the files for labeling"

    def _images(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for _, image in self._entries:
            if _is_file(image):
                yield os.path.relpath(_absolute(image), self.root), image

    def write_tasks(self, file: Path) -> None:
        """Write the tasks for Label Studio as a JSON list with one task per line."""
        with file.open("w", encoding="utf-8") as out:
            _write_list(out, itertools.starmap(self._task, self._images()))

    def _task(self, name: str, image: dict[str, Any]) -> dict[str, Any]:
        width, height = image["width"], image["height"]
        results = []
        for number, found in enumerate(best_of(image)):
            label = self._names[found["label"]]
            value: dict[str, Any] = {"choices": [label]}
            if box := found.get("box"):
                value = {
                    "x": 100 * box[0] / width,
                    "y": 100 * box[1] / height,
                    "width": 100 * (box[2] - box[0]) / width,
                    "height": 100 * (box[3] - box[1]) / height,
                    "rotation": 0,
                    "rectanglelabels": [label],
                }
            results.append(
                {
                    "id": f"{number}",
                    "type": list(value)[-1],
                    "from_name": _FROM,
                    "to_name": _TO,
                    "original_width": width,
                    "original_height": height,
                    "image_rotation": 0,
                    "value": value,
                    "score": found["score"],
                }
            )
        scores = [result["score"] for result in results]
        address = f"/data/local-files/?d={quote(os.fsencode(f'{self.root.name}/{name}'))}"
        prediction = {"model_version": self._model, "result": results}
        if scores:
            prediction["score"] = sum(scores) / len(scores)
        return {"data": {_TO: address}, "predictions": [prediction]}

    def write_interface(self, file: Path) -> None:
        """Write the labeling interface for Label Studio."""
        view = ElementTree.Element("View")
        ElementTree.SubElement(view, "Image", name=_TO, value=f"${_TO}")
        tag, label = ("RectangleLabels", "Label")
        if any("classes" in image for _, image in self._entries):
            tag, label = "Choices", "Choice"
        labels = ElementTree.SubElement(view, tag, name=_FROM, toName=_TO)
        for name in self._names:
            ElementTree.SubElement(labels, label, value=name)
        _save(view, file)

    def write_cvat(self, file: Path) -> None:
        """Write the annotations in the format "CVAT for images 1.1"."""
        root = ElementTree.Element("annotations")
        ElementTree.SubElement(root, "version").text = "1.1"
        task = ElementTree.SubElement(ElementTree.SubElement(root, "meta"), "task")
        labels = ElementTree.SubElement(task, "labels")
        for name in self._names:
            ElementTree.SubElement(ElementTree.SubElement(labels, "label"), "name").text = name
        for number, (name, image) in enumerate(self._images()):
            about = {"id": str(number), "name": _plain(name)}
            about |= {side: str(image[side]) for side in ("width", "height")}
            element = ElementTree.SubElement(root, "image", about)
            for found in best_of(image):
                about = {"label": self._names[found["label"]], "source": "auto"}
                if box := found.get("box"):
                    about |= {"occluded": "0", "z_order": "0"}
                    about |= {
                        side: f"{at:.2f}" for side, at in zip(("xtl", "ytl", "xbr", "ybr"), box, strict=True)
                    }
                ElementTree.SubElement(element, "box" if box else "tag", about)
        _save(root, file)

    def write_cvat_labels(self, file: Path) -> None:
        """Write the labels to paste into the "Raw" tab of a CVAT project or task."""
        labels = [{"name": name, "attributes": []} for name in self._names]
        file.write_text(json.dumps(labels, indent=1) + "\n", encoding="utf-8")


def _is_file(image: dict[str, Any]) -> bool:
    return "frame" not in image and os.path.isfile(image["source"])  # noqa: PTH113 - never raises


def _absolute(image: dict[str, Any]) -> str:
    return os.path.abspath(str(image["source"]))  # noqa: PTH100 - Path would keep ".."


def _plain(text: str) -> str:
    return NOT_XML.sub("\ufffd", text)


def _save(root: ElementTree.Element, file: Path) -> None:
    """Write XML in ASCII, without a declaration, because Label Studio rejects one in pasted text."""
    ElementTree.indent(root)
    file.write_bytes(ElementTree.tostring(root, "us-ascii", xml_declaration=False) + b"\n")
