"""Label Studio's JSON, in the layout of its documentation; percentages of images of 64 × 48 pixels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankless.data.datasets.open_split import examine, open_annotations
from rankless.errors import UserError
from support.label_tools import converted, objects, put, write

SIZE = {
    "original_width": 64,
    "original_height": 48,
    "image_rotation": 0,
    "from_name": "label",
    "to_name": "image",
}


def result(kind: str, value: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": kind, "value": value, **SIZE, **more}


def box(label: str = "cat", **more: Any) -> dict[str, Any]:
    """Of 25 %, 50 %, 12.5 %, 25 %: the pixels 16, 24, 24, 36."""
    value = {"x": 25, "y": 50, "width": 12.5, "height": 25, "rotation": 0, "rectanglelabels": [label]}
    return result("rectanglelabels", value | more)


def task(name: str, *annotations: Any, **more: Any) -> dict[str, Any]:
    return {"id": 3, "annotations": list(annotations), "predictions": [{"result": [box("wrong")]}],
            "data": {"image": name, "source": "phone"}, **more}  # fmt: skip


def done(*results: Any, **more: Any) -> dict[str, Any]:
    return {"id": 1, "was_cancelled": False, "ground_truth": False, "result": list(results), **more}


def made(root: Path, *tasks: Any) -> Path:
    for name in "abcd":
        put(root / "images" / f"{name}.jpg", name)
    write(root / "project-1.json", json.dumps(tasks))
    return root


BOX = ("cat", (16, 24, 24, 36))


def test_regions_become_boxes(tmp_path):
    results = [
        box(),
        # 16 × 12 pixels at (32, 12), turned by 90° about the upper left corner: to the left, and downwards
        box(x=50, y=25, width=25, height=25, rotation=90),
        result("polygonlabels", {"points": [[25, 50], [50, 75], [37.5, 100]], "polygonlabels": ["dog"]}),
        # a circle of 4.8 pixels about the center, whose radii are different percentages
        result("ellipselabels", {"x": 50, "y": 50, "radiusX": 7.5, "radiusY": 10, "rotation": 30,
                                 "ellipselabels": ["dog"]}),
        # a rectangle and its label as two results
        result("rectangle", {"x": 0, "y": 0, "width": 100, "height": 100, "rotation": 0}, id="r"),
        result("labels", {"x": 0, "y": 0, "width": 100, "height": 100, "labels": ["dog"]}, id="r"),
        result("keypointlabels", {"x": 1, "y": 1, "width": 0.5, "keypointlabels": ["dog"]}),
        result("brushlabels", {"format": "rle", "rle": [0, 1], "brushlabels": ["dog"]}),
        result("choices", {"choices": ["indoors"]}),
        result("textarea", {"text": ["nice"]}),
        {"type": "relation", "from_id": "r", "to_id": "s", "direction": "right"},
    ]  # fmt: skip
    root = made(tmp_path / "pets", task("/data/upload/1/0a1b2c3d-a.jpg", done(*results)))
    annotations = examine(str(root), "train")
    assert annotations.class_names == ("cat", "dog")
    expected = [
        BOX, ("cat", (20, 12, 32, 28)), ("dog", (16, 24, 32, 48)), ("dog", (27.2, 19.2, 36.8, 28.8)),
        ("dog", (0, 0, 64, 48)),
    ]  # fmt: skip
    for (name, found), (label, wanted) in zip(objects(annotations)["a.jpg"], expected, strict=True):
        assert name == label and found == pytest.approx(wanted, abs=1e-5)
    assert annotations.findings.counts == {"turned": 1, "outline": 2, "not a box": 3}
    assert converted(root) == objects(annotations)


@pytest.mark.parametrize(
    "name",
    [
        "upload/1/0a1b2c3d-a.jpg", "/data/local-files/?d=photos/a.jpg", "s3://bucket/photos/a.jpg",
        "https://host/files/a.jpg?token=x.png", "http://localhost:8080/data/local-files/?d=photos%2Fa.jpg",
        "gs://bucket/a.jpg", "/data/upload/1/a.jpg",
    ],
)  # fmt: skip
def test_images_are_found_by_their_file_names(tmp_path, name):
    annotations = examine(str(made(tmp_path, task(name, done(box())))), "train")
    assert objects(annotations) == {"a.jpg": [BOX]}
    assert any("not at its listed path" in note for note in annotations.about)


def test_empty_skipped_and_repeated_annotations(tmp_path):
    newest = done(box(), updated_at="2025-01-02T00:00:00Z")
    older = done(box("old"), created_at="2025-01-01T00:00:00Z")
    truth = done(box("truth"), ground_truth=True, created_at="2024-01-01T00:00:00Z")
    root = made(
        tmp_path,
        task("a.jpg", newest, older, done(box("skipped"), was_cancelled=True, updated_at="2026")),
        task("b.jpg", done(box("skipped"), was_cancelled=True)),
        task("c.jpg", done()),
        task("d.jpg"),
    )
    annotations = examine(str(root), "train")
    assert objects(annotations) == {"a.jpg": [BOX], "c.jpg": [], "d.jpg": []}
    assert annotations.findings.counts == {"left out": 1, "empty": 1, "no label file": 1}
    assert any(
        "1 task has several annotations: only the ground truth or" in note for note in annotations.about
    )
    root = made(tmp_path, task("a.jpg", truth, newest))
    assert objects(examine(str(root), "train")) == {"a.jpg": [("truth", BOX[1])]}


def test_flat_tasks(tmp_path):
    """JSON-MIN, in which a task with two annotations is listed twice."""
    value = {**box()["value"], "original_width": 64, "original_height": 48}
    about = {"id": 1, "image": "/data/upload/1/a.jpg", "annotator": 1, "annotation_id": 1}
    first = {**about, "label": [{**value, "rectanglelabels": ["old"]}], "updated_at": "2025-01-01"}
    second = {**about, "label": [value], "updated_at": "2025-01-02", "choice": "indoors"}
    empty = {**about, "id": 2, "image": "b.jpg"}
    annotations = examine(str(made(tmp_path, second, first, empty)), "train")
    assert objects(annotations) == {"a.jpg": [BOX], "b.jpg": []}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (task("a.jpg", done(box(x="1"))), "task 3: not a number: region 1"),
        (task("a.jpg", done(box(rectanglelabels=[]))), "unnamed class: region 1: None"),
        (task("a.jpg", done({**box(), "image_rotation": 90})), "the image was rotated by 90; expected 0"),
        (task("a.jpg", done({**box(rotation=9), "original_width": 0})), "not a number: region 1"),
        (task("a.jpg", done({**box(rotation=9), "original_width": None})), "not a number: region 1"),
        (task("a.jpg", done(7)), "result 1 has no 'value'"),
        (task("a.jpg", done(result("x", {"points": [[1]], "labels": ["x"]}))), "not a number: region 1"),
        (task("a.jpg", data={"text": "hello"}), "found 0 images in the task; expected one image"),
        (task("a.jpg", data={"left": "a.jpg", "right": "b.jpg"}), "found 2 images in the task"),
        (7, "found 0 images in the task"),
        (task("files/b.jpg", done()), "'files/b.jpg' and 'b.jpg' .task 3. both refer to"),
    ],
)  # fmt: skip
def test_what_is_wrong_stops_training_and_is_named(tmp_path, given, said):
    with pytest.raises(UserError, match=said):
        open_annotations(str(made(tmp_path, task("b.jpg", done(box())), given)), "train")


def test_choices_alone_are_refused(tmp_path):
    root = made(tmp_path, task("a.jpg", done(result("choices", {"choices": ["cat"]}))))
    with pytest.raises(UserError, match="no objects in any split; expected boxes or outlines"):
        examine(str(root), "train")
