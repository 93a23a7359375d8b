"""Pre-annotations, read as the importers of Label Studio and CVAT read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import pytest

from rankless.inference.formats import Labeling
from rankless.inference.predict import predict
from rankless.inference.prediction_journal import Entry


@pytest.fixture
def labeled(colors: Path, painted_file: Callable[..., Path], tmp_path: Path) -> Callable[..., Any]:
    """``labeled("cvat", …)``: the report of a prediction on three images in two folders."""
    painted_file("a & b.png", "red", "blue")
    painted_file("empty.png")
    painted_file("sub/ü.png", "green", size=(800, 300))

    def save(*kinds: str, sources: tuple[str, ...] = ("images",), **options: Any) -> Any:
        given = [str(tmp_path / each) if "digits" not in each else each for each in sources]
        return predict(colors, given, out=tmp_path / "out", save=kinds, device="cpu", **options)

    return save


def truth(out: Path) -> dict[str, list[tuple[str, list[float]]]]:
    """The names and boxes in ``predictions.json`` by the image's path."""
    images = json.loads((out / "predictions.json").read_text())
    return {each["source"]: [(one["name"], one["box"]) for one in each["detections"]] for each in images}


def test_label_studio_finds_the_images_and_the_boxes(labeled, tmp_path):
    report = labeled("json", "label-studio")
    interface = ElementTree.parse(report.out / "label_studio_config.xml").getroot()
    (image,) = interface.iter("Image")
    (control,) = interface.iter("RectangleLabels")
    assert control.attrib["toName"] == image.attrib["name"]
    assert [label.attrib["value"] for label in control] == ["red", "green", "blue"]
    found = {}
    for task in json.loads((report.out / "label_studio.json").read_text()):
        address = urlsplit(task["data"][image.attrib["value"].removeprefix("$")])
        assert address.path == "/data/local-files/"
        file = tmp_path / parse_qs(address.query)["d"][0]  # below the document root
        (prediction,) = task["predictions"]
        assert prediction["model_version"].endswith("colors.safetensors")
        scores = [result["score"] for result in prediction["result"]]
        assert prediction.get("score") == (pytest.approx(sum(scores) / len(scores)) if scores else None)
        assert len({result["id"] for result in prediction["result"]}) == len(scores)
        boxes = found[str(file)] = []
        for result in prediction["result"]:
            names = result["from_name"], result["to_name"], result["type"]
            assert names == (control.attrib["name"], image.attrib["name"], "rectanglelabels")
            (label,) = result["value"]["rectanglelabels"]
            x, y, w, h = (result["value"][side] / 100 for side in ("x", "y", "width", "height"))
            width, height = result["original_width"], result["original_height"]
            sides = [x * width, y * height, (x + w) * width, (y + h) * height]
            boxes.append((label, pytest.approx(sides, abs=1e-6)))
    assert found == truth(report.out)
    assert all(Path(file).is_file() for file in found)
    (note,) = report.notes
    assert f"DOCUMENT_ROOT={tmp_path}," in note and note.endswith(f"local storage {tmp_path / 'images'}")


def test_cvat_matches_the_images_by_name(labeled, tmp_path):
    report = labeled("json", "cvat")
    root = ElementTree.parse(report.out / "cvat.xml").getroot()
    assert (root.tag, root.findtext("version")) == ("annotations", "1.1")
    found = {}
    for number, image in enumerate(root.iter("image")):
        assert image.attrib["id"] == str(number)
        found[str(tmp_path / "images" / image.attrib["name"])] = [
            (box.attrib["label"], [float(box.attrib[side]) for side in ("xtl", "ytl", "xbr", "ybr")])
            for box in image.iter("box")
        ]
        assert {box.attrib["source"] for box in image.iter("box")} <= {"auto"}
        assert {box.attrib["occluded"] for box in image.iter("box")} <= {"0"}
    assert found == truth(report.out)
    sizes = {image.attrib["name"]: image.attrib["width"] for image in root.iter("image")}
    assert sizes == {"a & b.png": "400", "empty.png": "400", "sub/ü.png": "800"}
    labels = json.loads((report.out / "cvat_labels.json").read_text())
    assert labels == [{"name": name, "attributes": []} for name in ("red", "green", "blue")]


def test_images_without_a_file_are_left_out_and_counted(labeled):
    report = labeled("json", "cvat", sources=("images/empty.png", "digits:val:0-1"))
    (image,) = ElementTree.parse(report.out / "cvat.xml").getroot().iter("image")
    assert image.attrib["name"] == "empty.png"
    assert [note for note in report.notes if note.startswith("2 images are from a video")]


def test_classes_are_choices_and_tags(tmp_path):
    (tmp_path / "a.png").touch()
    best = [{"label": 1, "name": "<b>", "score": 0.75}, {"label": 0, "name": "a", "score": 0.25}]
    image = {"source": str(tmp_path / "a.png"), "width": 4, "height": 2, "classes": best}
    labeling = Labeling([Entry("a", image)], ["a", "<b>"], "model")
    for write in (labeling.write_tasks, labeling.write_interface, labeling.write_cvat):
        write(tmp_path / write.__name__)
    (control,) = ElementTree.parse(tmp_path / "write_interface").getroot().iter("Choices")
    assert [choice.attrib["value"] for choice in control] == ["a", "<b>"]
    (task,) = json.loads((tmp_path / "write_tasks").read_text())
    (result,) = task["predictions"][0]["result"]
    assert (result["type"], result["value"], result["score"]) == ("choices", {"choices": ["<b>"]}, 0.75)
    (tag,) = ElementTree.parse(tmp_path / "write_cvat").getroot().iter("tag")
    assert tag.attrib == {"label": "<b>", "source": "auto"}
