"""CreateML JSON: boxes by their center in pixels, as Apple's documentation shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankless.data.datasets.open_split import examine, open_annotations
from rankless.errors import UserError
from support.label_tools import converted, objects, put, write

# In the layout of Apple's documentation; the second image has the older keys, the third has no objects.
FILE = """[
  {"image": "a.jpg", "annotations": [
    {"label": "carrot", "coordinates": {"x": 12, "y": 16.5, "width": 20, "height": 11}},
    {"label": "apple", "coordinates": {"x": 50, "y": 30, "width": 8, "height": 6}}]},
  {"imagefilename": "b.jpg", "annotation": [
    {"label": "apple", "coordinates": {"x": 32, "y": 24, "width": 64, "height": 48}}]},
  {"image": "c.jpg", "annotations": []}
]"""
TRUTH = {
    "a.jpg": [("carrot", (2, 11, 22, 22)), ("apple", (46, 27, 54, 33))],
    "b.jpg": [("apple", (0, 0, 64, 48))],
    "c.jpg": [],
}


def made(root: Path, content: object = None) -> Path:
    for name in "abc":
        put(root / f"{name}.jpg", name)
    write(root / "annotations.json", FILE if content is None else json.dumps(content))
    return root


def test_boxes_are_given_by_their_centers(tmp_path):
    root = made(tmp_path / "food")
    annotations = examine(str(root), "train")
    assert annotations.class_names == ("apple", "carrot") and objects(annotations) == TRUTH
    assert annotations.findings.counts == {"empty": 1}
    assert converted(root) == TRUTH
    assert objects(examine(str(root / "annotations.json"), "train")) == TRUTH


def test_splits_number_their_classes_alike(tmp_path):
    for split, label in (("train", "b"), ("valid", "a")):
        box = {"x": 5, "y": 5, "width": 4, "height": 4}
        put(tmp_path / split / "1.jpg", split)
        entries = [{"image": "1.jpg", "annotations": [{"label": label, "coordinates": box}]}]
        write(tmp_path / split / "_annotations.createml.json", json.dumps(entries))
    for split, label in (("train", "b"), ("val", "a")):
        annotations = examine(str(tmp_path), split)
        assert annotations.class_names == ("a", "b")
        assert objects(annotations) == {"1.jpg": [(label, (3, 3, 7, 7))]}


def one(annotation: object) -> dict[str, object]:
    return {"image": "a.jpg", "annotations": [annotation]}


BOX = {"x": 5, "y": 5, "width": 4, "height": 4}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (one({"label": "x", "coordinates": {"x": "5"}}), "not a number: annotation 1"),
        (one({"label": "x", "coordinates": None}), "not a number: annotation 1: None; expected coordinates"),
        (one({"coordinates": BOX}), "unnamed class: annotation 1: None; expected the name of a class"),
        (one({"label": "\ud800", "coordinates": BOX}), "unnamed class"),
        ({"image": 7, "annotations": []}, "image 2: not understood: .* expected 'image' and 'annotations'"),
        ({"image": "a.jpg", "annotations": {}}, "image 2: not understood"),
        (["a.jpg"], "image 2: not understood"),
        ({"image": "./b.jpg", "annotations": []}, "'./b.jpg' and 'b.jpg' .image 1. both refer to"),
    ],
)  # fmt: skip
def test_what_is_wrong_stops_training_and_is_named(tmp_path, entry, said):
    first = {"image": "b.jpg", "annotations": [{"label": "x", "coordinates": BOX}]}
    with pytest.raises(UserError, match=said):
        open_annotations(str(made(tmp_path, [first, entry])), "train")


def test_missing_images_and_repeated_entries_are_counted(tmp_path):
    entry = {"image": "a.jpg", "annotations": [{"label": "x", "coordinates": BOX}]}
    root = made(tmp_path, [entry, entry, {**entry, "image": "gone.jpg"}])
    assert examine(str(root), "train").findings.counts == {"listed twice": 1, "no image": 1}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"images": []}, "not a list; expected a list of objects with 'image'"),
        ([], "no images are listed"),
        ([{"image": "gone.jpg", "annotations": []}], "none of the listed images, such as 'gone.jpg', was"),
        ([{"image": "a.jpg", "annotations": []}], "no objects in any split; expected boxes"),
    ],
)  # fmt: skip
def test_a_file_without_boxes_is_refused(tmp_path, content, said):
    with pytest.raises(UserError, match=said):
        examine(str(made(tmp_path, content) / "annotations.json"), "train", "createml")


def test_two_files_for_a_split_are_refused(tmp_path):
    write(made(tmp_path) / "train" / "x.json", FILE)
    write(tmp_path / "train.json", FILE)
    with pytest.raises(UserError, match=r"'train.json' and 'train/x.json' are both CreateML JSON for"):
        examine(str(tmp_path), "train")
