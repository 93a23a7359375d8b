"""Finding images by the names that annotations give them."""

import errno
import os
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rankless.data.datasets.open_split import open_annotations
from rankless.data.formats.folders import ImageSearch
from rankless.errors import UserError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (
        "train/a.jpg",
        "val/a.jpg",
        "val/b.PNG",
        "c d.jpg",
        "val/deep/e.jpg",
        f"{unicodedata.normalize('NFD', 'é')}.jpg",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a.jpg", "val/a.jpg"),  # the first base's
        ("train/a.jpg", "train/a.jpg"),
        ("./train/../train//a.jpg", "train/a.jpg"),
        ("train\\a.jpg", "train/a.jpg"),
        ("c d.jpg", "c d.jpg"),
        ("b.png", "val/b.PNG"),
        ("b", "val/b.PNG"),
        ("é.jpg", f"{unicodedata.normalize('NFD', 'é')}.jpg"),
        ("/home/me/train/a.jpg", "train/a.jpg"),
        ("E:\\all\\deep\\e.jpg", "val/deep/e.jpg"),
        ("", ""),
        (" ", ""),
        (".", ""),
        ("/", ""),
        ("gone.jpg", ""),
        ("a.jpg/b.jpg", ""),
        ("\0", ""),
        ("\ud800/x.jpg", ""),
        ("../" * 50 + "gone.jpg", ""),
    ],
)
def test_find(root, name, found):
    search = ImageSearch([root / "val", root])
    assert search.find(name) == (str(root / found) if found else "")
    assert search.shortened == (name.startswith(("/home", "E:")))


def test_an_absolute_name_is_taken_as_it_is(root, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "a.jpg").touch()
    assert ImageSearch([root]).find(str(elsewhere / "a.jpg")) == str(elsewhere / "a.jpg")


def test_each_folder_is_listed_once_and_reported(root):
    search = ImageSearch([root / "val", root])
    names = ("a.jpg", "train/a.jpg", "gone/x.jpg")
    assert [bool(search.find(name)) for name in names] == [True, True, False]
    for name in ("val/new.jpg", "train/new.jpg"):
        (root / name).touch()
        assert search.find(Path(name).name) == search.find(name) == ""  # the folder is not listed again
    assert {str(root), str(root / "val"), str(root / "train"), str(root / "gone")} <= set(search.listed)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_folder_that_cannot_be_listed_does_not_pass_for_an_empty_one(tmp_path: Path, number: int) -> None:
    """Its images would be trained on as background; root may list everything, so an audit hook refuses."""
    for name in ("images/train", "labels/train"):
        (tmp_path / name).mkdir(parents=True)
    Image.new("RGB", (32, 32)).save(tmp_path / "images/train/a.png")
    (tmp_path / "labels/train/a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (tmp_path / "classes.txt").write_text("a\n")
    labels = str(tmp_path / "labels" / "train")

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.listdir" and arguments[0] == labels:
            raise OSError(number, os.strerror(number), labels)

    sys.addaudithook(refuse)
    with pytest.raises(
        UserError, match=re.escape(f"{labels}: cannot be listed ({os.strerror(number)}); change its")
    ):
        open_annotations(str(tmp_path), "train")
