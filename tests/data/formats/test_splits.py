"""Which split a name means."""

from pathlib import Path

import pytest

from rankless.data.formats.splits import chosen, usual_order, without_year
from rankless.errors import UserError


def test_training_comes_first():
    names = ["test", "zoo", "valid", "Train", "a", "val"]
    assert usual_order(names) == ["Train", "val", "valid", "test", "a", "zoo"]


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["train2017", "val2017"], ["train", "val"]),
        (["train_2017"], ["train"]),
        (["train2014", "train2017"], ["train2014", "train2017"]),
        (["train", "train2017"], ["train", "train2017"]),
        (["2017", "batch12"], ["2017", "batch12"]),
    ],
)
def test_years(names, short):
    assert without_year(names) == dict(zip(short, names, strict=True))


@pytest.mark.parametrize(
    ("wanted", "found", "meant"),
    [
        ("val", ["val", "valid"], "val"),
        ("val", ["train", "valid"], "valid"),
        ("valid", ["train", "val"], "val"),
        ("val", ["train", "Validation"], "Validation"),
        ("train2017", ["train2017"], "train2017"),
        ("train", ["train2017", "val2017"], "train2017"),
    ],
)
def test_other_words_for_a_split(wanted, found, meant):
    assert chosen(Path("x"), wanted, dict.fromkeys(found), "") == meant


def test_no_such_split(tmp_path):
    with pytest.raises(UserError, match="no split 'val'; expected one of 'train', 'trainval'"):
        chosen(tmp_path, "val", {"trainval": 1, "train": 1}, "a file")
    with pytest.raises(UserError, match="no split 'val'; expected 'test'"):  # it cannot be both
        chosen(tmp_path, "val", {"test": 1}, "a file")
    with pytest.raises(UserError, match="no split 'test'"):  # to train on one and be scored on the other
        chosen(tmp_path, "test", {"train": 1, "val": 1}, "a file")
    with pytest.raises(UserError, match="no split found; expected a file"):
        chosen(tmp_path, "val", {}, "a file")
    with pytest.raises(UserError, match="no split 'train'"):
        chosen(tmp_path, "train", {"mine": 1}, "a file")  # a folder may yet get one
    (tmp_path / "mine.csv").touch()
    assert chosen(tmp_path / "mine.csv", "train", {"mine": 1}, "") == "mine"
