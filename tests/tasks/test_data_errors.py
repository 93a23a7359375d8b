"""What is wrong with the data of both splits, labels and images, is reported in one go."""

from pathlib import Path

import pytest
from PIL import Image

from rankless.errors import UserError
from rankless.recipe.load import default
from rankless.tasks import resolve_recipe
from rankless.tasks.classify import Classify


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / "cache"))
    for split in ("train", "val"):
        for number in range(3):
            for kind in ("images", "labels"):
                (tmp_path / kind / split).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 20)).save(tmp_path / "images" / split / f"{number}.png")
            (tmp_path / "labels" / split / f"{number}.txt").write_text("0 .5 .5 .2 .2\n")
    (tmp_path / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [x, y]\n")
    return tmp_path


def errors_of(root: Path, *changes: str) -> list[str]:
    with pytest.raises(UserError) as refused:
        resolve_recipe(default([f"data.root={root}", *changes]))
    return list(refused.value.problems)


def test_labels_and_images_of_both_splits_come_at_once(root: Path) -> None:
    for split in ("train", "val"):
        (root / "labels" / split / "0.txt").write_text("7 .5 .5 .2 .2\n")
        (root / "images" / split / "1.png").write_bytes(b"no image")
    found = errors_of(root)
    for split in ("train", "val"):
        assert any(f"labels/{split}/0.txt:1: class out of range" in one for one in found)
        assert any(f"images/{split}/1.png: unreadable image" in one for one in found)
        assert any(f"1 of the 3 images in the split '{split}'" in one for one in found)
    assert [number for number, one in enumerate(found) if "rankless data check" in one] == [len(found) - 1]


def test_images_that_are_few_enough_are_no_errors(root: Path) -> None:
    (root / "labels/train/0.txt").write_text("7 .5 .5 .2 .2\n")
    (root / "images/train/1.png").write_bytes(b"no image")
    found = errors_of(root, "data.max_bad=0.5")
    assert len(found) == 2 and "class out of range" in found[0]


def test_a_class_folder_that_the_training_split_lacks_is_named(root: Path) -> None:
    for path in ("train/a", "train/b", "train/empty", "val/a", "val/b", "val/empty", "val/zebra"):
        (root / "f" / path).mkdir(parents=True)
        if path != "train/empty":
            Image.new("RGB", (40, 20)).save(root / "f" / path / "0.png")
    task = Classify(default([f"data.root={root / 'f'}", "model.name=resnet18", "task=classify"]))
    with pytest.raises(UserError) as refused:
        task.evaluation_data()
    said = str(refused.value)
    assert "'val' has classes that 'train' does not have: 'empty', 'zebra'" in said
    assert "f/train/empty'" in said and "--" not in said
