"""The facts of a data set, counted by hand, and data that is refused."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from rankless.curation.facts import facts_of
from rankless.curation.new_recipe import settings, text
from rankless.curation.splitting import split
from rankless.data.formats.splits import VAL_FRACTION
from rankless.errors import UserError
from rankless.recipe import load
from support.small_data import classes, detection, write_image

BOX = [[0, 0, 20, 10, 0]]  # of an image of 60 × 40


def test_facts_of_boxes(tmp_path, monkeypatch):
    root = detection(tmp_path / "d", {"train": [*[BOX] * 11, [[0, 0, 60, 40, 1]]], "val": [BOX] * 3})
    facts = facts_of(str(root), tmp_path / "new")
    assert (facts.boxed, facts.train_images, facts.val_images) == (True, 12, 3)
    assert facts.counts == {"cat": 11, "dog": 1, "eel": 0}
    assert (facts.height, facts.width, facts.is_uniform) == (40, 60, True)
    assert facts.box_side == pytest.approx(200**0.5)  # the root of 20 × 10
    assert (facts.train, facts.val, facts.split_note, facts.root) == ("train", "val", "", str(root))
    assert facts.gpus == torch.cuda.device_count() and replace(facts, gpus=3).devices == 3
    assert not (tmp_path / "new").exists()
    monkeypatch.setenv("RANKLESS_CPU", "1")
    assert facts_of(str(root), tmp_path / "new").gpus == 0


def test_findings_and_values_of_unknown_range_are_facts(tmp_path):
    root = detection(tmp_path / "d", {"train": [*[BOX] * 11, [[9, 9, 99, 30, 0]]], "val": [BOX] * 3})
    values = np.arange(60 * 40, dtype=np.int32).reshape(40, 60)
    Image.fromarray(values).save(root / "images/val-001.png", "TIFF")
    facts = facts_of(str(root), tmp_path / "new")
    assert facts.unknown_range == "integers of up to 32 bits from 0 to 2,399"
    (note,) = [note for note in facts.notes if "edge" in note]
    assert note.startswith("1 box extends beyond the edge of the image (clipped); first finding: ")
    chosen = {setting.key: setting for setting in settings(facts)}["data.range"]
    assert chosen.value == "auto" and facts.unknown_range in chosen.why
    load.parsed(text(facts, "d.yaml"), "d.yaml")
    assert "data.range" not in text(replace(facts, unknown_range=""), "d.yaml")


def test_images_of_several_shapes_are_not_uniform(tmp_path):
    root = detection(tmp_path / "d", {"train": [BOX] * 12, "val": [BOX]})
    for number in range(6):
        write_image(root / f"images/train-{number:03}.png", number, (40, 60))
    assert not facts_of(str(root), tmp_path / "new").is_uniform


def test_boxes_without_a_validation_split_are_divided(tmp_path):
    root = detection(tmp_path / "d", {"trainval": [BOX] * 60})
    facts = facts_of(str(root), tmp_path / "new", classes=("cat",))
    assert (facts.root, facts.train, facts.classes) == (str(tmp_path / "new"), "train", "auto")
    assert facts.train_images + facts.val_images == 60
    assert facts.val_images == pytest.approx(60 * VAL_FRACTION, abs=9)
    assert f"{root} has no validation split" in facts.split_note
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=r"other: already exists, but .*d has no validation split"):
        facts_of(str(root), tmp_path / "other")


def first_again(root: object) -> str:
    return f"Rankless divided {root} earlier, and the data has not changed since."


def test_a_division_of_the_same_data_is_used_again(tmp_path):
    root = detection(tmp_path / "d", {"trainval": [BOX] * 60})
    first = facts_of(str(root), tmp_path / "new")
    before = {file: file.lstat().st_mtime_ns for file in (tmp_path / "new").rglob("*")}
    again = facts_of(f"{root}/../d", tmp_path / "new")
    assert {file: file.lstat().st_mtime_ns for file in (tmp_path / "new").rglob("*")} == before
    assert again.counts == first.counts and again.val_images == first.val_images
    assert again.split_note == first_again(f"{root}/../d")
    split(str(root), tmp_path / "by-hand", val=0.3)
    by_hand = facts_of(str(root), tmp_path / "by-hand")
    assert (by_hand.root, by_hand.split_note) == (str(tmp_path / "by-hand"), first_again(root))
    assert by_hand.val_images > again.val_images
    other = detection(tmp_path / "e", {"trainval": [BOX] * 60})  # not the one that was divided
    with pytest.raises(UserError, match=r"new: already exists, but .*e has no validation split"):
        facts_of(str(other), tmp_path / "new")
    shutil.rmtree(root)
    detection(root, {"trainval": [*[BOX] * 60, [[0, 0, 60, 40, 1]]]})
    with pytest.raises(UserError, match=r"changed since.*move .*new away"):
        facts_of(str(root), tmp_path / "new")


def test_a_test_split_is_scored_on_if_there_is_no_other(tmp_path):
    root = classes(tmp_path / "d", {"train": {"cat": 8, "dog": 8}, "test": {"cat": 3, "dog": 2}})
    facts = facts_of(str(root), tmp_path / "new")
    assert (facts.val, facts.val_images) == ("val", 5)
    assert "test split" in facts.split_note


def test_class_folders_without_splits_are_divided_by_their_reader(tmp_path):
    root = classes(tmp_path, {"d": {"cat": 10, "dog": 20}}) / "d"
    facts = facts_of(str(root), tmp_path / "new")
    assert (facts.boxed, facts.root, facts.counts) == (False, str(root), {"cat": 8, "dog": 16})
    assert "set these images aside" in facts.split_note
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("counts", "problems"),
    [
        ({"cat": 12}, ["one class, 'cat'; expected at least two"]),
        ({"cat": 12, "dog": 1, "eel": 1}, ["fewer than two training images of 'dog', 'eel'; expected"]),
        ({"cat": 3, "dog": 1}, ["4 training images; expected at least 10", "fewer than two .* of 'dog'"]),
    ],
)
def test_too_few_images_are_refused(tmp_path, counts, problems):
    root = classes(tmp_path / "d", {"train": counts, "val": counts})
    with pytest.raises(UserError) as caught:
        facts_of(str(root), tmp_path / "new")
    assert len(caught.value.problems) == len(problems)
    for problem in problems:
        assert caught.match(problem)


def test_other_data_is_refused(tmp_path):
    few = detection(tmp_path / "few", {"train": [BOX] * 3})
    with pytest.raises(UserError, match="3 training images"):
        facts_of(str(few), tmp_path / "new")
    assert not (tmp_path / "new").exists()  # nothing is divided before that
    empty = detection(tmp_path / "empty", {"train": [[]] * 12, "val": [BOX]})
    with pytest.raises(UserError, match="has no usable boxes"):
        facts_of(str(empty), tmp_path / "new")
    with pytest.raises(UserError, match="'digits': this data is generated, so it has no files"):
        facts_of("digits", tmp_path / "new")


def test_the_built_in_name_comes_before_a_folder_of_this_name(tmp_path, monkeypatch, capsys):
    """``rankless export --format folder`` makes ./digits; training never reads it as data."""
    monkeypatch.chdir(tmp_path)
    detection(tmp_path / "digits", {"train": [BOX] * 12, "val": [BOX]})
    with pytest.raises(UserError, match="this data is generated"):
        facts_of("digits", tmp_path / "new")
    assert "to use the folder or file of this name, write ./digits" in capsys.readouterr().err
    assert facts_of("./digits", tmp_path / "new").train_images == 12
