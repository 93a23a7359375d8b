"""labelme JSON: a file per image, as labelme 5 and X-AnyLabeling write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankless.data.datasets.open_split import examine, open_annotations
from rankless.errors import UserError
from support.label_tools import HEIGHT, WIDTH, converted, objects, put, write


def shape(label: str, kind: str, *points: tuple[float, float], group: int | None = None) -> dict[str, Any]:
    return {"label": label, "points": points, "group_id": group, "shape_type": kind, "flags": {}}


SHAPES = [
    shape("dog", "rectangle", (22, 13), (2, 3)),  # the corners may be in any order
    shape("cat", "polygon", (30, 5), (40, 8), (36, 35)),
    shape("cat", "circle", (20, 30), (23, 34)),  # the radius is 5
    shape("cat", "polygon", (50, 4), (54, 4), (54, 8), group=1),  # two parts of an object
    shape("cat", "polygon", (58, 10), (60, 10), (60, 14), group=1),
    shape("dog", "polygon", (1, 40), (5, 40), (5, 44), group=1),
    shape("cat", "mask", (10, 20), (12, 22)),  # the last pixel is inclusive
    shape("cat", "rotation", (40, 30), (44, 34), (40, 38), (36, 34)),
    shape("cat", "point", (1, 1)),
    shape("cat", "linestrip", (1, 1), (2, 2)),
]
TRUTH = [
    ("dog", (2, 3, 22, 13)), ("cat", (30, 5, 40, 35)), ("cat", (15, 25, 25, 35)), ("cat", (50, 4, 60, 14)),
    ("dog", (1, 40, 5, 44)), ("cat", (10, 20, 13, 23)), ("cat", (36, 30, 44, 38)),
]  # fmt: skip


def save(file: Path, shapes: Any, image: str = "a.jpg", **more: Any) -> None:
    made = {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": image, "imageData": None}
    write(file, json.dumps({**made, "imageHeight": HEIGHT, "imageWidth": WIDTH, **more}))


def test_shapes_become_boxes(tmp_path):
    root = tmp_path / "pets"
    for name in "ab":
        put(root / f"{name}.jpg", name)
    save(root / "a.json", SHAPES)
    save(root / "gone.json", SHAPES)
    annotations = examine(str(root), "train")
    assert annotations.class_names == ("cat", "dog")
    assert objects(annotations) == {"a.jpg": TRUTH, "b.jpg": []}
    counts = {"outline": 5, "turned": 1, "not a box": 2, "no label file": 1, "label without image": 1}
    assert annotations.findings.counts == counts
    assert converted(root) == objects(annotations)


def test_files_may_be_in_folders_of_their_own(tmp_path):
    for split in ("train", "val"):
        for name in ("1", "2"):
            put(tmp_path / "images" / split / f"{name}.jpg", name + split)
            save(
                tmp_path / "annotations" / split / f"{name}.json",
                [SHAPES[0]],
                rf"..\images\{split}\{name}.jpg",
            )
    assert objects(examine(str(tmp_path), "val")) == {"1.jpg": [TRUTH[0]], "2.jpg": [TRUTH[0]]}


def test_folders_of_cameras_are_one_split(tmp_path):
    for camera, name in (("left", "1"), ("right", "1"), ("right", "2")):
        put(tmp_path / camera / f"{name}.jpg", camera + name)
        save(tmp_path / camera / f"{name}.json", [shape(f"{camera} {name}", "rectangle", (1, 1), (5, 5))])
    annotations = examine(str(tmp_path), "train")
    names = [annotations.class_names[label] for label in annotations.labels]
    assert names == ["left 1", "right 1", "right 2"]


def test_classes_of_all_splits_are_numbered_together(tmp_path):
    for split, label in (("train", "10"), ("test", "9")):
        put(tmp_path / split / "a.jpg", split)
        save(tmp_path / split / "a.json", [shape(label, "rectangle", (1, 1), (5, 5))])
    assert examine(str(tmp_path), "train").class_names == ("9", "10")


@pytest.mark.parametrize(
    ("shapes", "more", "said"),
    [
        ([shape("", "rectangle", (1, 1), (5, 5))], {}, "a.json: unnamed class: object 1: ''; expected"),
        ([shape("x", "rectangle")], {}, "not a number: object 1"),
        ([shape("x", "circle", (1, 1))], {}, "not a number: object 1"),
        ([shape("x", "star", (1, 1))], {}, "other form: object 1: the shape is 'star'; expected one of"),
        ([None], {}, "not a number: object 1"),
        (None, {}, "a.json: not understood: no list 'shapes'"),
        ([], {"image": "b.jpg"}, "'imagePath' is 'b.jpg'; expected the image next to this file, 'a.jpg'"),
    ],
)  # fmt: skip
def test_what_is_wrong_stops_training_and_is_named(tmp_path, shapes, more, said):
    for name in "ab":
        put(tmp_path / f"{name}.jpg", name)
    save(tmp_path / "a.json", shapes, **more)
    save(tmp_path / "b.json", SHAPES, "b.jpg")
    with pytest.raises(UserError, match=said):
        open_annotations(str(tmp_path), "train", "labelme")


def test_a_single_file_is_no_data_set(tmp_path):
    save(tmp_path / "a.json", SHAPES)
    with pytest.raises(UserError, match="it looks like labelme JSON; use the folder that contains it"):
        examine(str(tmp_path / "a.json"), "train")


def test_a_damaged_file_stops_training_and_is_named(tmp_path):
    put(tmp_path / "a.jpg", "a")
    write(tmp_path / "a.json", '{"shapes": [')
    with pytest.raises(UserError, match=r"a.json: unreadable file: not JSON: .*expected labelme JSON"):
        open_annotations(str(tmp_path), "train", "labelme")
