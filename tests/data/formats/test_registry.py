"""A folder inside a data set is not taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankless.data.formats.registry import also, recognize
from rankless.errors import UserError


def touched(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("names: [a]\ntrain: images/train\n" if name.endswith(".yaml") else "")
    return root


BY_KIND = ("images/train/0.png", "images/val/1.png", "labels/train/0.txt", "labels/val/1.txt")
BY_SPLIT = ("train/images/0.png", "train/labels/0.txt", "val/images/1.png", "val/labels/1.txt")
LAYOUTS = {
    "described": ("data.yaml", *BY_KIND),
    "by kind": ("classes.txt", *BY_KIND),
    "by split": ("data.yaml", *BY_SPLIT),
    "voc": ("JPEGImages/0.jpg", "Annotations/0.xml", "ImageSets/Main/train.txt"),
}


@pytest.mark.parametrize(
    ("layout", "given"),
    [
        ("described", "images"), ("described", "images/train"), ("described", "labels"),
        ("described", "labels/val"), ("by kind", "images"), ("by kind", "images/val"), ("by split", "train"),
        ("by split", "train/images"), ("by split", "val/labels"), ("voc", "JPEGImages"),
    ],
)  # fmt: skip
def test_the_whole_is_named_where_a_part_is_given(tmp_path, layout, given):
    whole = touched(tmp_path / "mine", *LAYOUTS[layout])
    recognize(str(whole))
    with pytest.raises(UserError) as caught:
        recognize(str(whole / given))
    assert str(caught.value).startswith(f"{whole / given}: ")
    assert str(caught.value).endswith(f"use {whole}, or move the folder if it does not belong to it")


def test_both_kinds_of_labels_of_the_same_images_are_named(tmp_path):
    root = touched(tmp_path / "mine", *LAYOUTS["described"], *LAYOUTS["voc"])
    assert recognize(str(root))[0] == "darknet"
    (said,) = also(str(root), "darknet")
    assert "it can also be read as Pascal VOC with data.format=voc" in said
    assert not [*also(str(touched(tmp_path / "other", *LAYOUTS["described"])), "darknet")]


def test_what_stands_alone_is_taken(tmp_path):
    split = touched(tmp_path / "whole", *LAYOUTS["by split"], "train/data.yaml") / "train"
    assert recognize(str(split))[0] == "darknet"
    folders = touched(tmp_path / "images", "cat/0.png", "dog/1.png")
    assert recognize(str(folders))[0] == "image-folder"
    part = touched(tmp_path / "mine", *LAYOUTS["described"]) / "images"
    assert recognize(str(part), "image-folder")[0] == "image-folder"


def test_the_home_folder_is_no_data_of_class_folders(tmp_path, monkeypatch):
    home = touched(tmp_path / "me", "cat/0.png", "dog/1.png")
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(
        UserError, match=r"~: this is the home folder, where each folder would count as a class"
    ):
        recognize("~")
    assert recognize("~", "image-folder")[0] == "image-folder"
    assert recognize(str(touched(home, *LAYOUTS["described"])))[0] == "darknet"
    if not Path("/data.yaml").exists():
        with pytest.raises(UserError, match=r"^/: (this is the root of the file system|no known data)"):
            recognize("/")
