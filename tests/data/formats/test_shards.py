"""Which shards are of which split, what class names are, and when a folder is one of shards."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from rankless.data.formats.shards import class_names, known_as, looks_like_shards, shards_of
from rankless.data.formats.webdataset import recognize
from rankless.errors import UserError


def tar(path: Path, *names: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name in names or ("1.jpg", "1.cls"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return path


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["val-000.tar", "train-001.tar", "train-000.tar"], {"train": 2, "val": 1}),
        (["test/a.tar", "val/1.tar", "val/2.TAR", "train/x-7.tar"], {"train": 1, "val": 2, "test": 1}),
        (["zoo/1.tar", "val/1.tar", "extra/1.tar"], {"val": 1, "extra": 1, "zoo": 1}),
        (["000000.tar", "000001.tar"], {"train": 2}),
        (["in1k-validation-00.tar", "in1k-train-00.tar"], {"in1k-train": 1, "in1k-validation": 1}),
        (["train-00-of-02.tar", "train-01-of-02.tar"], {"train": 2}),
        (["VOC2012-train-2-000000.tar"], {"VOC2012-train-2": 1}),
        (["train.tar", ".train-7.tar", "notes.txt"], {"train": 1}),
    ],
)  # fmt: skip
def test_splits(tmp_path, files, splits):
    for name in files:
        tar(tmp_path / name)
    found = shards_of(tmp_path)
    assert {name: len(shards) for name, shards in found.items()} == splits
    assert list(found) == list(splits)
    assert all(shards == sorted(shards) for shards in found.values())


def test_a_split_may_be_named_by_its_last_word():
    assert known_as("train", ["in1k-train", "in1k-val"]) == "in1k-train"
    assert known_as("train", ["a-train", "b-train"]) == "train"
    assert known_as("train", ["train", "b-train"]) == "train"
    assert known_as("val", ["train", "valid"]) == "valid"
    assert known_as("val", ["in1k-train", "in1k-validation"]) == "in1k-validation"
    assert known_as("val", ["valid", "dev"]) == "val"


@pytest.mark.parametrize(
    ("name", "members", "known"),
    [
        ("train-000000.tar", (), True),
        ("data/00012.tar", (), True),
        ("train-00000.tar.gz", (), True),
        ("images.tar", ("a/1.jpg", "a/1.json"), True),
        ("VOCtrainval_11-May-2012.tar", ("VOC/JPEGImages/1.jpg", "VOC/Annotations/1.xml"), False),
        ("all.tar", ("images/1.jpg", "images/2.jpg", "labels/1.txt"), False),
        ("backup.tar.gz", (), False),
    ],
)
def test_shards_are_reported_from_other_archives(tmp_path, name, members, known):
    tar(tmp_path / name, *members)
    assert bool(recognize(tmp_path)) == known == (looks_like_shards(tmp_path) is not None)


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("classes.txt", "\ufeffcat\r\nbig dog\n\n", ["cat", "big dog"]),
        ("classnames.txt", "cat\nowl", ["cat", "owl"]),
        ("info.json", '{"classes": ["a ", "b"]}', ["a ", "b"]),
        ("_info.json", '["a"]', ["a"]),
        ("info.json", '{"splits": {}}', None),
    ],
)
def test_class_names(tmp_path, name, content, names):
    shard = tar(tmp_path / "train/0.tar")
    for folder in (tmp_path, tmp_path / "train"):
        (folder / name).write_text(content)
        found, file = class_names(tmp_path, [shard])
        assert found == names and file == (str(folder / name) if names else "")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("classes.txt", "cat\ncat", "the class name 'cat' is repeated"),
        ("classes.txt", "cat\n\ndog", "line 2 is empty"),
        ("classes.txt", "", "no class names"),
        ("info.json", '{"classes": [1]}', r"the classes are \[1\]; expected"),
        ("info.json", "{", "expected one class name per line"),
        ("classes.txt", b"\xff", "'utf-8' codec"),
    ],
)
def test_errors_of_class_names(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=words):
        class_names(tmp_path, [tar(tmp_path / "0.tar")])
