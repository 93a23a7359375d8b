"""Data in another format reads back the same, and whatever does not is reported."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rankless.curation.converting import compare, convert
from rankless.errors import UserError
from support.small_data import detection

SPLITS = {"train": [[[1, 1, 9, 9, 0], [2, 2, 30, 30, 1]], []], "val": [[[3, 3, 9, 9, 2]]]}


@pytest.fixture
def after(tmp_path):
    """The differences after a change to the written files of some splits."""

    def run(change, *changed):
        out = tmp_path / "out"
        splits = convert(str(detection(tmp_path / "d", SPLITS)), "coco", out).data.splits
        for split in changed:
            file = out / f"annotations/instances_{split}.json"
            content = json.loads(file.read_text())
            change(content)
            file.write_text(json.dumps(content))
        paths = {
            (id(whole), index): str(out / "images" / split / Path(path).name)
            for split, whole in splits.items()
            for index, path in enumerate(whole.paths())
        }
        return compare(splits, out, "coco", paths)

    return run


@pytest.mark.parametrize("how", ["link", "copy"])
def test_images_are_linked_or_copied(tmp_path, how):
    root = detection(tmp_path / "d", SPLITS)
    convert(str(root), "coco", tmp_path / "out", how=how)
    old, new = root / "images/train-000.png", tmp_path / "out/images/train/train-000.png"
    assert old.read_bytes() == new.read_bytes()
    assert old.samefile(new) is (how == "link")


HAIR = float(np.nextafter(np.float32(1), np.float32(2)))


@pytest.mark.parametrize(
    ("split", "change", "reported"),
    [
        (
            "train",
            lambda content: content["annotations"][0]["bbox"].__setitem__(0, HAIR),
            f"train-000.png: it has 'cat' at [{HAIR}, 1.0, 9.0, 9.0]; expected 'cat' at [1.0, 1.0, 9.0, 9.0]",
        ),
        (
            "val",
            lambda content: content["annotations"][0].update(category_id=1),
            "it has 'cat' at [3.0, 3.0, 9.0, 9.0]; expected 'eel' at [3.0, 3.0, 9.0, 9.0]",
        ),
        (
            "train",
            lambda content: content["annotations"].pop(),
            "train-000.png: it has 1 box; expected 2",
        ),
        ("train", lambda content: content["images"].pop(), "train: 1 image; expected 2"),
    ],
)
def test_a_difference_is_reported(after, split, change, reported):
    (found,) = after(change, split)
    assert found.endswith(reported)


def test_an_exchanged_image_is_reported(after):
    def exchange(content):
        one, other = content["images"]
        one["file_name"], other["file_name"] = other["file_name"], one["file_name"]

    assert len(after(exchange, "train")) == 2


def test_other_orders_are_no_difference(after):
    def turn(content):
        for entries in content.values():
            entries.reverse()
        for entry in content["categories"]:
            entry["id"] = 4 - entry["id"]
        for entry in content["annotations"]:
            entry["category_id"] = 4 - entry["category_id"]

    assert after(turn, "train", "val") == []


def test_boxes_do_not_go_into_class_folders(tmp_path):
    with pytest.raises(UserError, match="class folders cannot store the boxes of"):
        convert(str(detection(tmp_path / "d", SPLITS)), "image-folder", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bad_data_is_not_converted(tmp_path):
    with pytest.raises(UserError, match="unnamed class"):
        convert(str(detection(tmp_path / "d", {"train": [[[1, 1, 9, 9, 5]]]})), "coco", tmp_path / "out")


def test_what_is_left_out_is_reported(tmp_path):
    root = detection(tmp_path / "d", {"train": [[[1, 1, 99, 9, 0]]]})
    (said,) = convert(str(root), "coco", tmp_path / "out").lost
    assert said.startswith("train: 1 box extends beyond the edge of the image (clipped)")


@pytest.fixture
def flagged(tmp_path: Path) -> str:
    """COCO's JSON of two images, with a crowd, something to ignore, odd names and a box at a hair's edge."""
    boxes = [[1, 2, 20, 20], [1e-12, 2, 20, 20], [5, 5, 9, 9]]
    marks = [{"iscrowd": 1}, {}, {"ignore": 1}]
    content = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 64, "height": 48} for n in (1, 2)],
        "annotations": [
            {"id": 3 * image + n, "image_id": image, "category_id": 1 + n % 2, "bbox": box, "area": 50} | mark
            for image in (1, 2)
            for n, (box, mark) in enumerate(zip(boxes, marks, strict=True))
        ],
        "categories": [{"id": 1, "name": "zebra\ncrossing "}, {"id": 2, "name": "ant"}],
    }
    (tmp_path / "c" / "annotations").mkdir(parents=True)
    (tmp_path / "c/annotations/instances_train.json").write_text(json.dumps(content))
    for number in (1, 2):
        Image.new("RGB", (64, 48), (number, 0, 0)).save(tmp_path / "c" / f"{number}.png")
    return str(tmp_path / "c")


@pytest.mark.parametrize(
    ("to", "announced"),
    [
        ("yolo", ["marked difficult", "marked a crowd", "area of the box", "edge: rounded"]),
        ("lines", ["marked difficult", "marked a crowd", "area of the box", "to fit"]),
        (
            "voc",
            ["written as difficult", "area of the box", "edge: rounded", "order of the classes", "to fit"],
        ),
        ("csv", ["to fit"]),
        ("coco", []),
    ],
)
def test_what_was_announced_as_lost_is_no_difference(flagged, tmp_path, to, announced):
    done = convert(flagged, to, tmp_path / "out")
    assert done.differences == []
    assert len(done.lost) == len(announced)
    assert all(any(what in sentence for sentence in done.lost) for what in announced)


def test_a_loss_beyond_what_was_announced_is_reported(flagged, tmp_path):
    splits = convert(flagged, "darknet", tmp_path / "out").data.splits
    (tmp_path / "out/labels/train/2.txt").write_text("")
    (reported,) = compare(splits, tmp_path / "out", "darknet", {})
    assert reported.endswith("2.png: it has 0 boxes; expected 1")


def test_class_folders_of_which_one_split_lacks_a_class(tmp_path: Path) -> None:
    """Every split numbers its own classes; the table names them."""
    for number, folder in enumerate(("train/cat", "train/dog", "val/dog")):
        (tmp_path / "pets" / folder).mkdir(parents=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "pets" / folder / f"{number}.png")
    assert convert(str(tmp_path / "pets"), "csv", tmp_path / "table").differences == []
    assert (tmp_path / "table" / "val.csv").read_text() == "filename,class\nimages/val/2.png,dog\n"
