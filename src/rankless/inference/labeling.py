"""Write predictions as pre-annotations for Label Studio and CVAT.

Label Studio's tasks contain boxes in percent of the image, and match the labeling interface in
``label_studio_config.xml``. CVAT imports ``cvat.xml`` as "CVAT 1.1" into a task with the same images. Both
identify an image by its path relative to the folder that contains all images.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from rankless.data.formats.voc_xml import NOT_XML
from rankless.errors import counted

Images = Callable[[], Iterator[dict[str, Any]]]
"""A function that returns a new iterator over the objects in ``predictions.json``."""

KINDS = {"label-studio", "cvat"}
"""The values of ``--save`` that write pre-annotations."""
_FROM, _TO = "label", "image"
_NO_FILE = "from a video, a stream or the built-in data, or in shards or Parquet files"


class Labeling:
    """The pre-annotations of one prediction, only for images that are files.

    ``model`` is the model version to show in Label Studio.
    """

    def __init__(self, images: Images, class_names: Sequence[str], model: str) -> None:
        self._every, self._names, self._model = images, [_plain(name) for name in class_names], model

    @cached_property
    def root(self) -> Path:
        """The deepest folder that contains all images."""
        folders = {os.path.dirname(_absolute(image)) for image in filter(_is_file, self._every())}  # noqa: PTH120
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
        if kinds & KINDS and (left_out := sum(not _is_file(image) for image in self._every())):
            images = counted(left_out, "image is", "images are")
            yield f"{images} {_NO_FILE}, and therefore not in the files for labeling"

    def _images(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for image in filter(_is_file, self._every()):
            yield os.path.relpath(_absolute(image), self.root), image

    def write_tasks(self, file: Path) -> None:
        """Write the tasks for Label Studio as a JSON list with one task per line."""
        with file.open("w", encoding="utf-8") as out:
            out.write("[")
            for number, (name, image) in enumerate(self._images()):
                out.write((",\n" if number else "\n") + json.dumps(self._task(name, image)))
            out.write("\n]\n")

    def _task(self, name: str, image: dict[str, Any]) -> dict[str, Any]:
        width, height = image["width"], image["height"]
        results = []
        for number, found in enumerate(_found(image)):
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
        if any("classes" in image for image in self._every()):
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
            for found in _found(image):
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


def _found(image: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an image's detections, or its most likely class."""
    found: list[dict[str, Any]] = image.get("detections") or image.get("classes", [])[:1]
    return found


def _is_file(image: dict[str, Any]) -> bool:
    return "frame" not in image and os.path.isfile(image["source"])  # noqa: PTH113 - never raises


def _absolute(image: dict[str, Any]) -> str:
    return os.path.abspath(str(image["source"]))  # noqa: PTH100 - Path would keep ".."


def _plain(text: str) -> str:
    return NOT_XML.sub("\ufffd", text)


def _save(root: ElementTree.Element, file: Path) -> None:
    """Write XML in ASCII without a declaration, which Label Studio rejects in pasted text."""
    ElementTree.indent(root)
    file.write_bytes(ElementTree.tostring(root, "us-ascii", xml_declaration=False) + b"\n")
