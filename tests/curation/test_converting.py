"""Data in another format reads back the same, and whatever does not is reported."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from small_data import NAMES, classes, detection

from rankless.curation import converting
from rankless.curation.converting import convert
from rankless.errors import UserError

SPLITS = {"train": [[[1, 1, 9, 9, 0], [2, 2, 30, 30, 1]], []], "val": [[[3, 3, 9, 9, 2]]]}


@pytest.fixture
def after(tmp_path, monkeypatch):
    """Convert, with a change to the written file before it is read back."""

    def run(change):
        real = converting.compare

        def spoilt(splits, out, format, went):
            content = json.loads((out / "boxes.json").read_text())
            change(content)
            (out / "boxes.json").write_text(json.dumps(content))
            return real(splits, out, format, went)

        monkeypatch.setattr(converting, "compare", spoilt)
        return convert(str(detection(tmp_path / "d", SPLITS)), "small", tmp_path / "out").differences

    return run


@pytest.mark.slow
@settings(settings.get_profile("files"), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(corners=st.lists(st.tuples(*[st.floats(0, 30, width=32)] * 4, st.integers(0, 2)), max_size=4))
def test_everything_reads_back(tmp_path_factory, corners):
    place = tmp_path_factory.mktemp("data")
    boxes = [[x, y, x + w + 1, y + h / 4 + 1, label] for x, y, w, h, label in corners]
    done = convert(str(detection(place / "d", {"train": [boxes, []], "val": [[]]})), "small", place / "out")
    assert done.differences == []
    assert done.as_json()["equal"] is True


@pytest.mark.parametrize("how", ["link", "copy"])
def test_images_are_linked_or_copied(tmp_path, how):
    root = detection(tmp_path / "d", SPLITS)
    convert(str(root), "small", tmp_path / "out", how=how)
    old, new = root / "images/train-000.png", tmp_path / "out/train/train-000.png"
    assert old.read_bytes() == new.read_bytes()
    assert old.samefile(new) is (how == "link")


HAIR = float(np.nextafter(np.float32(1), np.float32(2)))


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (
            lambda train, val: train[0]["boxes"][0].__setitem__(0, HAIR),
            f"train-000.png: it has 'cat' at [{HAIR}, 1.0, 9.0, 9.0]; expected 'cat' at [1.0, 1.0, 9.0, 9.0]",
        ),
        (
            lambda train, val: val[0]["boxes"][0].__setitem__(4, 0),
            "it has 'cat' at [3.0, 3.0, 9.0, 9.0]; expected 'eel' at [3.0, 3.0, 9.0, 9.0]",
        ),
        (lambda train, val: train[0]["boxes"].pop(), "train-000.png: it has 1 box; expected 2"),
        (lambda train, val: train.pop(), "train: 1 image; expected 2"),
    ],
)
def test_a_difference_is_reported(after, change, reported):
    (found,) = after(lambda content: change(content["splits"]["train"], content["splits"]["val"]))
    assert found.endswith(reported)


def test_an_exchanged_image_is_reported(after):
    def exchange(content):
        entries = content["splits"]["train"]
        entries[0]["file"], entries[1]["file"] = entries[1]["file"], entries[0]["file"]

    assert len(after(exchange)) == 2


def test_other_orders_are_no_difference(after):
    def turn(content):
        content["names"] = NAMES[::-1]
        for entries in content["splits"].values():
            entries.reverse()
            for entry in entries:
                entry["boxes"] = [[*box[:4], 2 - box[4]] for box in reversed(entry["boxes"])]

    assert after(turn) == []


def test_class_folders_convert_too(tmp_path):
    root = classes(tmp_path / "c", {"train": {"cat": 3, "dog": 2}, "val": {"cat": 1, "dog": 1}})
    assert convert(str(root), "image-folder", tmp_path / "out").differences == []
    assert len(list((tmp_path / "out/train/cat").iterdir())) == 3


def test_boxes_do_not_go_into_class_folders(tmp_path):
    with pytest.raises(UserError, match="class folders cannot store the boxes of"):
        convert(str(detection(tmp_path / "d", SPLITS)), "image-folder", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bad_data_is_not_converted(tmp_path):
    with pytest.raises(UserError, match="class out of range"):
        convert(str(detection(tmp_path / "d", {"train": [[[1, 1, 9, 9, 5]]]})), "small", tmp_path / "out")


def test_what_is_left_out_is_reported(tmp_path):
    root = detection(tmp_path / "d", {"train": [[[1, 1, 99, 9, 0]]]})
    (said,) = convert(str(root), "small", tmp_path / "out").lost
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


def test_a_loss_beyond_what_was_announced_is_reported(flagged, tmp_path, monkeypatch):
    real = converting.compare

    def after_a_loss(splits, out, format, went):
        (out / "labels/train/2.txt").write_text("")
        return real(splits, out, format, went)

    monkeypatch.setattr(converting, "compare", after_a_loss)
    (reported,) = convert(flagged, "darknet", tmp_path / "out").differences
    assert reported.endswith("2.png: it has 0 boxes; expected 1")


def test_class_folders_of_which_one_split_lacks_a_class(tmp_path: Path) -> None:
    """Every split numbers its own classes; the table names them."""
    for number, folder in enumerate(("train/cat", "train/dog", "val/dog")):
        (tmp_path / "pets" / folder).mkdir(parents=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "pets" / folder / f"{number}.png")
    assert convert(str(tmp_path / "pets"), "csv", tmp_path / "table").differences == []
    assert (tmp_path / "table" / "val.csv").read_text() == "filename,class\nimages/val/2.png,dog\n"
