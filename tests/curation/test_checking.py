"""What a check finds, and that a fixed copy has nothing left to find."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rankless.curation.checking import LEAK, NEAR_LEAK, TWIN, check, disagreements
from rankless.curation.fixing import BY_HAND, fix, remedy
from rankless.errors import UserError
from support.small_data import classes, detection, write_image

GOOD = [[[1, 1, 9, 9, 0]], [[2, 2, 30, 30, 1]], [[3, 3, 9, 9, 2]]]


def counts(checked):
    return {name: found.counts for name, found in checked.findings.items()}


def cut_short(file: Path) -> None:
    """The header stays, the pixels end."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def test_a_image_cut_short_is_found_by_decoding_alone(tmp_path):
    root = detection(tmp_path / "d", {"train": GOOD, "val": GOOD})
    cut_short(root / "images/train-001.png")
    assert check(str(root), splits=["train"], quick=True).ok
    assert counts(found := check(str(root), splits=["val"])) == {"val": {}} and found.ok
    found = check(str(root), splits=["train"])
    assert not found.ok
    assert counts(found) == {"train": {"unreadable image": 1}}
    assert found.findings["train"].first["unreadable image"][0].where == str(root / "images/train-001.png")
    assert found.unreadable == {"train": {1}}


@pytest.mark.parametrize("split", ["train", "trainval"])
def test_a_missing_validation_split_does_not_fail_if_train_divides_the_data(tmp_path, split):
    root = detection(tmp_path / "d", {split: GOOD * 4})
    found = check(str(root), quick=True)
    assert found.ok and found.missing == []
    assert found.undivided.startswith("no split 'val': ") and f" create it from '{split}'" in found.undivided
    for number, splits in enumerate(({split: GOOD}, {split: GOOD * 4, "other": GOOD}, {"test": GOOD * 4})):
        found = check(str(detection(tmp_path / f"{number}", splits)), quick=True)
        assert not found.ok and found.undivided == ""
        assert any("no split '" in sentence for sentence in found.missing)


def test_a_broken_header_is_counted_once(tmp_path):
    root = detection(tmp_path / "d", {"train": GOOD})
    (root / "images/train-000.png").write_bytes(b"no image")
    found = check(str(root))
    assert found.findings["train"].counts["unreadable image"] == 1
    assert found.unreadable == {"train": {0}}


def test_a_format_that_differs_from_the_extension_is_counted_and_accepted(tmp_path):
    root = detection(tmp_path / "d", {"train": GOOD, "val": GOOD})
    odd = root / "images/train-001.png"
    Image.open(odd).convert("RGB").save(odd, format="jpeg")
    for quick in (False, True):
        found = check(str(root), quick=quick)
        assert found.ok and counts(found) == {"train": {"other format": 1}, "val": {}}
        assert list(map(str, found.findings["train"].first["other format"])) == [f"{odd}: the format is JPEG"]


def test_a_leak_is_named_and_fails(tmp_path):
    root = detection(tmp_path / "d", {"train": GOOD, "val": GOOD, "test": GOOD})
    shutil.copy(root / "images/train-001.png", root / "images/test-002.png")
    found = check(str(root))
    assert not found.ok
    assert found.between.counts == {LEAK: 1}
    said = str(found.between.first[LEAK][0])
    assert "'train' " in said and "train-001.png" in said and "'test' " in said and "test-002.png" in said
    assert found.leaked == {"train": {1}}
    assert check(str(root), quick=True).between.counts == {}


def test_a_copy_of_an_image_in_another_split_is_a_warning(tmp_path):
    root = detection(tmp_path / "d", {"train": GOOD, "val": GOOD, "test": GOOD})
    rng = np.random.default_rng(2)
    scene = Image.fromarray(rng.integers(0, 256, (3, 4, 3), np.uint8))
    with Image.open(root / "images/train-001.png") as old:
        size = old.size
    scene.resize(size).save(root / "images/train-001.png")
    scene.resize(size).save(root / "images/train-002.png", compress_level=0)  # in one split it is no leak
    scene.resize(size).save(root / "images/val-000.png", "JPEG", quality=70)
    scene.resize(size).save(root / "images/test-002.png", "WEBP", quality=80)
    found = check(str(root))
    assert found.ok and found.leaked == {}
    assert found.between.counts == {NEAR_LEAK: 2}
    pairs = [str(one) for one in found.between.first[NEAR_LEAK]]
    assert all(any(name in pair for pair in pairs) for name in ("val-000.png", "test-002.png"))
    # Copies, which are leaks, are not named twice.
    shutil.copy(root / "images/train-001.png", root / "images/val-000.png")
    assert check(str(root)).between.counts == {LEAK: 1, NEAR_LEAK: 1}


def test_a_image_twice_in_a_split_is_reported_and_does_not_fail(tmp_path):
    root = detection(tmp_path / "d", {"train": GOOD})
    shutil.copy(root / "images/train-000.png", root / "images/train-002.png")
    found = check(str(root), splits=["train"])
    assert found.ok
    assert counts(found) == {"train": {TWIN: 1}}


@pytest.mark.parametrize(
    ("box", "kind", "ok"),
    [
        ([1, 1, 9, 9, 3], "unnamed class", False),
        ([9, 1, 1, 9, 0], "ends before it begins", False),
        ([1, 1, 99, 9, 0], "over the edge", False),
        ([70, 1, 99, 9, 0], "outside", False),
        ([1, 1, 2, 9, 0], "a pixel thin", True),
    ],
)
def test_the_outcome_of_a_finding_decides(tmp_path, box, kind, ok):
    found = check(str(detection(tmp_path / "d", {"train": [[box], *GOOD], "val": GOOD})))
    assert counts(found) == {"train": {kind: 1}, "val": {}}
    assert found.ok is ok
    report = json.loads(json.dumps(found.as_json()))
    assert report["ok"] is ok
    assert report["splits"]["train"]["findings"][kind]["count"] == 1


def test_a_fixed_copy_has_nothing_wrong(tmp_path):
    bad = [[[1, 1, 9, 9, 3], [5, 5, 9, 9, 1]], [[1, 1, 99, 9, 0]], *GOOD]
    root = detection(tmp_path / "d", {"train": bad, "val": GOOD})
    cut_short(root / "images/train-003.png")
    shutil.copy(root / "images/train-004.png", root / "images/val-000.png")
    before = {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}
    found = check(str(root))
    with pytest.raises(UserError) as refused:  # as a training would be, for the data may be misread
        fix(found, tmp_path / "clean")
    assert "unnamed class: 1; the first" in refused.value.problems[0]
    assert not (tmp_path / "clean").exists()
    assert "--drop-invalid" in refused.value.problems[1]
    fixed = fix(found, tmp_path / "clean", drop_invalid=True)
    assert fixed.changes == [
        "train: 1 box has a class that is not in the list of classes: dropped",
        "train: 1 box extends beyond the edge of the image: clipped",
        "train: 1 image cannot be read: dropped",
        "train: 1 image shared with another split: dropped",
    ]
    again = check(str(tmp_path / "clean"))
    assert again.ok
    assert counts(again) == {"train": {}, "val": {}}
    train, val = again.data.splits["train"], again.data.splits["val"]
    assert [Path(path).name for path in train.paths()] == [f"train-00{n}.png" for n in (0, 1, 2)]
    assert train.boxes.tolist() == [[5, 5, 9, 9], [1, 1, 60, 9], [1, 1, 9, 9]]
    assert len(val) == 3
    assert {file: file.read_bytes() for file in root.rglob("*") if file.is_file()} == before


LOST = b"\xff\xfe0\x00 \x00"  # UTF-16
GARBAGE = bytes(range(1, 256)) * 4
LATIN = "0 .5 .5 .2 .2\n# größe\n".encode("latin-1")


@pytest.mark.parametrize("content", [LOST, GARBAGE, LATIN])
def test_the_advice_about_a_lost_label_file_is_true(tmp_path, content):
    """What the last line of a check says helps; what it does not say would be refused."""
    root = _darknet(tmp_path / "d")
    (root / "labels/train/1.txt").write_bytes(content)
    found = check(str(root))
    assert counts(found)["train"] == {"unreadable file": 1}
    assert remedy(found) == BY_HAND
    for drop_invalid in (False, True):
        with pytest.raises(UserError) as refused:
            fix(found, tmp_path / "clean", drop_invalid=drop_invalid)
        advice = refused.value.problems[-1]
        assert BY_HAND in advice and "add --drop-invalid" not in advice
    (root / "labels/train/1.txt").write_text("0 .5 .5 .2 .2\n")
    assert check(str(root)).ok


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("7 .5 .5 .2 .2", "use --fix --drop-invalid to write a copy"),
        ("0 .9 .5 .4 .2", "use --fix to write a copy without them"),
    ],
)
def test_the_advice_about_boxes_is_true(tmp_path, line, advice):
    root = _darknet(tmp_path / "d")
    (root / "labels/train/1.txt").write_text(f"0 .5 .5 .2 .2\n{line}\n")
    found = check(str(root))
    assert advice in remedy(found)
    fix(found, tmp_path / "clean", drop_invalid="--drop-invalid" in advice)
    assert check(str(tmp_path / "clean")).ok
    (root / "labels/train/0.txt").write_bytes(LOST)  # one that is for the user alone comes first
    found = check(str(root))
    assert remedy(found).startswith(f"{BY_HAND}; then ") and advice.partition(" without")[0] in remedy(found)


def _darknet(root: Path) -> Path:
    for number in range(4):
        name = f"train/{number}" if number < 3 else f"val/{number}"
        write_image(root / f"images/{name}.png", number)
        label = root / f"labels/{name}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("0 .5 .5 .2 .2\n")
    (root / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [x, y]\n")
    return root


def test_a_split_of_which_nothing_is_left_is_not_written(tmp_path):
    root = detection(tmp_path / "d", {"train": GOOD, "val": GOOD[:1]})
    cut_short(root / "images/val-000.png")
    with pytest.raises(UserError, match="every image of the split 'val' would be dropped"):
        fix(check(str(root)), tmp_path / "clean")
    assert not (tmp_path / "clean").exists()


def test_class_folders_are_checked_and_fixed_too(tmp_path):
    root = classes(tmp_path / "c", {"train": {"cat": 3, "dog": 2}, "val": {"cat": 1, "dog": 1}})
    shutil.copy(root / "train/cat/000.png", root / "val/cat/000.png")
    cut_short(root / "train/dog/001.png")
    found = check(str(root))
    assert counts(found)["train"] == {"unreadable image": 1}
    assert found.between.counts == {LEAK: 1}
    fix(found, tmp_path / "clean")
    again = check(str(tmp_path / "clean"))
    assert again.ok
    assert {name: len(each) for name, each in again.data.splits.items()} == {"train": 3, "val": 2}


def test_few_unreadable_images_are_replaced_and_more_stop_a_training(tmp_path):
    root = detection(tmp_path / "d", {"train": GOOD[:1] * 100})
    for number, outcome in enumerate(("replaced", "stops")):  # 1 % of the images, then 2 %
        cut_short(root / f"images/train-{number:03}.png")
        report = check(str(root)).as_json()["splits"]["train"]["findings"]["unreadable image"]
        assert (report["count"], report["outcome"]) == (number + 1, outcome)


def test_splits_may_number_classes_differently_but_must_have_the_same_classes(tmp_path):
    root = detection(tmp_path / "d", {"train": GOOD, "val": GOOD})
    whole = check(str(root)).data

    def with_classes(*names):
        val = replace(whole.splits["val"], class_names=names)
        return replace(whole, splits={**whole.splits, "val": val})

    assert disagreements(whole) == disagreements(with_classes("dog", "Cat", "eel")) == []
    further = disagreements(with_classes("dog", "cat", "owl"))
    assert further == ["'val' has classes that 'train' does not have: 'owl'"]


def test_one_class_alone_is_wrong(tmp_path):
    found = check(str(classes(tmp_path / "c", {"train": {"cat": 2}, "val": {"cat": 1}})))
    assert found.classes == ["'train' has only one class ('cat'); expected at least two"]
    assert found.wrong == 1


def test_classes_that_a_split_lacks_are_noted_and_do_not_fail(tmp_path):
    boxes = [[0, 0, 20, 20, label] for label in range(3)]
    root = detection(tmp_path / "d", {"train": [boxes] * 2, "val": [boxes[1:2]]})
    checked = check(str(root), quick=True)
    assert checked.ok and checked.notes("train") == []
    assert checked.notes("val") == ["'val' has no boxes of 2 of the 3 classes: 'cat', 'eel'"]
    assert check(str(root), quick=True).notes("val") == checked.notes("val")  # from the cache, too
    folders = classes(tmp_path / "f", {"train": {"cat": 2, "dog": 2}, "val": {"cat": 2}})
    checked = check(str(folders), quick=True)
    assert checked.ok and checked.lacking == ["'val' has no images of 1 of the 2 classes: 'dog'"]
