"""Splits that stay as they are, keep shares and keep groups together."""

import collections
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.curation.data_set import open_data_set
from rankless.curation.splitting import by_hash, split, stratified
from rankless.errors import UserError
from support.small_data import classes, detection


def names(whole):
    return {Path(path).name for path in whole.paths()}


def many(root, count):
    """``count`` images, of which each third has one of three classes."""
    return detection(root, {"train": [[[1, 1, 9, 9, number % 3]] for number in range(count)]})


def test_what_a_split_leaves_out_and_clips_is_told(tmp_path):
    boxes = [[[1, 1, 9, 9, 0]] for _ in range(20)]
    boxes[3] = [[-5, 1, 9, 9, 0], [1, 1, 9, 9, 1], [500, 500, 520, 520, 0], [1, 1, 1, 9, 0]]
    detection(tmp_path / "d", {"train": boxes})
    said = split(str(tmp_path / "d"), tmp_path / "new").as_json()
    assert (said["from"], said["to"]) == ("coco", "coco")
    for sentence in ("1 box is outside the image (dropped)", "1 box has no width or no height (dropped)"):
        assert any(note.startswith(f"train: {sentence}; first finding: ") for note in said["notes"])
    assert any(note.startswith("train: 1 box extends beyond the edge of") for note in said["notes"])


# --- by name ----------------------------------------------------------------------------------------------


def test_the_bounds_of_the_splits():
    hashed = [0.0, 0.0999, 0.1, 0.2999, 0.3001, 0.999]
    assert by_hash(hashed, [0.7, 0.1, 0.2]).tolist() == [1, 1, 2, 2, 0, 0]
    assert by_hash(hashed, [0.9, 0.1]).tolist() == [1, 1, 0, 0, 0, 0]


@given(st.lists(st.floats(0, 1, exclude_max=True)), st.floats(0.05, 0.4), st.floats(0.05, 0.4))
def test_a_test_split_that_comes_later_takes_from_train_alone(hashed, val, test):
    before, after = by_hash(hashed, [1 - val, val]), by_hash(hashed, [1 - val - test, val, test])
    assert ((before == 1) == (after == 1)).all()


def test_images_that_come_later_move_none(tmp_path):
    options = {"val": 0.3, "test": 0.2, "near": False}
    few = split(str(many(tmp_path / "few", 40)), tmp_path / "a", **options).splits
    more = split(str(many(tmp_path / "more", 60)), tmp_path / "b", **options).splits
    for name in ("train", "val", "test"):
        assert names(few[name]) <= names(more[name])
    assert sum(map(len, more.values())) == 60
    read = open_data_set(str(tmp_path / "b")).splits
    assert {name: names(each) for name, each in read.items()} == {n: names(each) for n, each in more.items()}


def test_the_seed_decides_and_nothing_else(tmp_path):
    root = str(many(tmp_path / "d", 40))
    seeds = enumerate((0, 0, 1))
    made = [split(root, tmp_path / f"{n}", seed=seed, near=False, link=True).splits for n, seed in seeds]
    assert names(made[0]["val"]) == names(made[1]["val"]) != names(made[2]["val"])


# --- stratified -------------------------------------------------------------------------------------------


def test_the_paper_by_hand():
    # Labels a and b: a, a, b, ab. Wanted of each half: 2 images, 1.5 a, 1 b. The rarest is b: image 2
    # goes to the first half (equal wishes), 3 to the second, which alone wants b. Of a: image 0 to the
    # first (1.5 against 0.5), and 1 to the second (0.5 each; the first half is full).
    counts = np.array([[1, 0], [1, 0], [0, 1], [1, 1]])
    assert stratified(counts, np.ones(4, int), [0.5, 0.5]).tolist() == [0, 1, 0, 1]


@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=200),
    shares=st.sampled_from([(0.8, 0.2), (0.7, 0.2, 0.1), (0.5, 0.5)]),
)
def test_with_one_label_each_every_class_has_its_share_to_one_image(labels, shares):
    counts = np.eye(4, dtype=int)[labels]
    where = stratified(counts, np.ones(len(labels), int), shares)
    for label in range(4):
        for number, share in enumerate(shares):
            here = int((counts[where == number][:, label]).sum())
            assert abs(here - share * counts[:, label].sum()) < 1 + 1e-9


def test_a_group_counts_as_many_times_as_it_has_images():
    # Four images wanted of each half; without labels the half that wants most takes the next: 3 to the
    # first (wants 1), 1 to the second (3), 1 to the second (2), 3 to the second (-1).
    nothing = np.zeros((4, 1), int)
    assert stratified(nothing, np.array([3, 1, 1, 3]), [0.5, 0.5]).tolist() == [0, 1, 1, 1]


def test_a_rare_class_is_in_every_split(tmp_path):
    # Four in a hundred images: drawn by chance, a fifth of them would often have none.
    boxes = [[[1, 1, 9, 9, 2 if number % 25 == 0 else 0], [1, 1, 20, 20, 1]] for number in range(100)]
    root = str(detection(tmp_path / "d", {"train": boxes}))
    for seed in range(3):
        done = split(root, tmp_path / f"{seed}", val=0.25, stratify=True, seed=seed, near=False, link=True)
        assert done.counts() == {"train": [72, 75, 3], "val": [24, 25, 1]}


def test_class_folders_keep_their_shares(tmp_path):
    root = classes(tmp_path / "c", {"train": {"cat": 20, "dog": 10}})
    done = split(str(root), tmp_path / "out", val=0.2, stratify=True)
    assert done.counts() == {"train": [16, 8], "val": [4, 2]}
    assert done.as_json()["splits"]["val"]["classes"] == {"cat": 4, "dog": 2}
    assert len(list((tmp_path / "out/val/dog").iterdir())) == 2


# --- groups -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("stratify", [False, True])
def test_a_group_stays_together(tmp_path, stratify):
    root = str(many(tmp_path / "d", 120))
    done = split(root, tmp_path / "out", val=0.4, group=r"-(\d\d)", stratify=stratify)
    groups = collections.defaultdict(set)
    for name, whole in done.splits.items():
        for file in names(whole):
            groups[re.search(r"-(\d\d)", file)[1]].add(name)
    assert len(groups) == 12
    assert all(len(splits) == 1 for splits in groups.values())
    assert done.notes[0] == "120 images in 12 groups"


def test_a_name_outside_every_group_stands_alone_and_is_counted(tmp_path):
    done = split(str(many(tmp_path / "d", 40)), tmp_path / "out", val=0.4, group=r"-00\d")
    assert done.notes[:2] == ["10 images in 10 groups", "30 image names do not match --group"]


# --- mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"val": 1.5}, "--val is 1.5: expected a fraction from 0 to 1"),
        ({"val": -0.1, "test": float("nan")}, "--val is -0.1.*\n.*--test is nan"),
        ({"val": 0.6, "test": 0.4}, "--val 0.6 and --test 0.4 leave no training images"),
        ({"val": 0}, "--val and --test are 0"),
        ({"group": "("}, r"--group is '\(', which is not a valid regular expression: missing \)"),
        ({"group": "patient"}, "--group 'patient': the pattern matches none of the 4 image names, such as"),
        ({"val": 1e-6}, "the split 'val' would get none of the 4 images"),
    ],
)
def test_a_mistake_writes_nothing(tmp_path, options, sentence):
    with pytest.raises(UserError, match=sentence):
        split(str(many(tmp_path / "d", 4)), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
