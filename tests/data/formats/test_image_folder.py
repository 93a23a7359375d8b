"""Class folders: which images are of which class and split, and what is reported about the rest."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rankless.data.datasets.annotated import ClassifiedImages
from rankless.data.datasets.classification import open_images
from rankless.data.formats import image_folder
from rankless.data.formats.registry import recognize
from rankless.data.index.raw import Raw
from rankless.errors import UserError
from rankless.recipe.schema import Data


def make(root: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), (number % 256, 0, 0)).save(root / name, format="PNG")
    return root


def opened(root: Path, split: str, names: tuple[str, ...] | None = None) -> ClassifiedImages:
    found = open_images(Data(root=str(root), format="image-folder"), split, names)
    assert isinstance(found, ClassifiedImages)
    return found


def listed(root: Path, split: str) -> list[tuple[str, str]]:
    data = image_folder.read(root, split)
    assert data.boxes is None
    files = (Path(path).relative_to(root).as_posix() for path in data.paths)
    return [(file, data.names[label]) for file, label in zip(files, data.labels, strict=True)]


def test_splits_of_class_folders(tmp_path):
    make(tmp_path, "train/owl/b.PNG", "train/owl/a.jpeg", "train/big cat/ü 1.png", "train/big cat/in/0.png")
    make(tmp_path, "val/owl/z.png", "test/owl/y.png", "test/big cat/x.png")
    assert listed(tmp_path, "train") == [
        ("train/big cat/in/0.png", "big cat"),
        ("train/big cat/ü 1.png", "big cat"),
        ("train/owl/a.jpeg", "owl"),
        ("train/owl/b.PNG", "owl"),
    ]
    names = opened(tmp_path, "train").class_names
    assert names == ("big cat", "owl")
    assert listed(tmp_path, "val") == [("val/owl/z.png", "owl")]
    val = opened(tmp_path, "val", names)
    assert val.label(0) == 1  # the model's, not 0
    assert val.notes[1:] == ("1 of 2 classes has no images: 'big cat'",)
    assert [name for _, name in listed(tmp_path, "test")] == ["big cat", "owl"]
    data = opened(tmp_path, "train")
    assert data.read(0).shape == (3, 3, 4) and data.label(3) == 1 and data.source(3).endswith("owl/b.PNG")
    assert data.annotations.sizes.tolist() == [[3, 4]] * 4
    assert image_folder.splits(tmp_path) == ["train", "val", "test"]


@settings(settings.get_profile("files"))
@given(st.lists(st.integers(1, 23), min_size=2, max_size=4))
def test_without_splits_a_fifth_of_each_class_is_for_validation(tmp_path_factory, sizes):
    root = tmp_path_factory.mktemp("classes")
    for label, size in enumerate(sizes):
        make(root, *(f"{label}/{number}.png" for number in range(size)))
    parts = {split: listed(root, split) for split in image_folder.splits(root)}
    assert not set(parts["train"]) & set(parts["val"])
    assert len(parts["train"]) + len(parts["val"]) == sum(sizes)
    held = Counter(name for _, name in parts["val"])
    for label, size in enumerate(sizes):
        assert abs(held[str(label)] - 0.2 * size) <= (0.5 if size > 2 else 0.8)
        assert held[str(label)] < size


def test_the_division_knows_only_names_inside_the_class_folder(tmp_path):
    names = [f"{number}.png" for number in range(20)]
    make(tmp_path / "a", *(f"{kind}/{name}" for kind in ("x", "y") for name in names))
    make(tmp_path / "b", *(f"{kind}/{name}" for kind in ("z", "x") for name in reversed(names)))
    parts = [
        {(Path(file).name, name) for file, name in listed(tmp_path / place, "val")} for place in ("a", "b")
    ]
    assert {file for file, name in parts[0]} == {file for file, _ in parts[1]}
    assert len(parts[0]) == len(parts[1]) == 8
    (note,) = image_folder.read(tmp_path / "a", "val").about
    assert "so its 40 images are divided by a hash of the file names: 32 'train', 8 'val'" in note
    chosen = sorted(int(file.removesuffix(".png")) for file, name in parts[0] if name == "x")
    assert chosen not in ([0, 1, 2, 3], [16, 17, 18, 19], [0, 5, 10, 15])


def test_a_name_composed_otherwise_is_the_same_data(tmp_path):
    names = [f"{kind}/é{number}.png" for kind in ("ä", "zoo") for number in range(10)]
    composed, apart = (
        make(tmp_path / form, *(unicodedata.normalize(form, name) for name in names))
        for form in ("NFC", "NFD")
    )

    def plain(root: Path) -> list[tuple[str, str]]:
        return [(unicodedata.normalize("NFC", file), name) for file, name in listed(root, "val")]

    assert plain(composed) == plain(apart)
    assert image_folder.read(apart, "val").names == ["zoo", "ä"]  # by code point


def test_what_is_left_out_is_reported(tmp_path):
    make(tmp_path, "train/a/1.png", "train/a/.2.png", "train/.cache/3.png", "train/4.png", "train/b/5.png")
    (tmp_path / "train/a/notes.txt").write_text("x")
    (tmp_path / "train/a/empty.png").touch()
    (tmp_path / "train/b/gone.png").symlink_to(tmp_path / "nowhere.png")
    os.mkfifo(tmp_path / "train/b/pipe.png")
    (tmp_path / "train/hollow/deep").mkdir(parents=True)
    data = image_folder.read(tmp_path, "train")
    assert [Path(path).name for path in data.paths] == ["1.png", "5.png"]
    assert data.names == ["a", "b"]
    for words in (
        "ignored: 1 folder without images: 'hollow'",
        "ignored: 1 (empty file); the first: ",
        "ignored: 1 (not an image)",
        "ignored: 1 (hidden)",
        "ignored: 1 (hidden folder)",
        "ignored: 1 (broken link)",
        "ignored: 1 (outside the class folders)",
        "ignored: 1 (not a regular file)",
    ):
        assert any(note.startswith(words) for note in data.about), words
    assert len(data.about) == 8


def test_links_are_followed_once(tmp_path):
    """No image is of two classes: not by links to folders, above or of others, and not by links to images."""
    make(tmp_path, "store/1.png", "train/a/2.png", "train/b/3.png", "train/.pool/4.png", "val/a/5.png")
    links = {"a/linked": "store", "a/again": "store", "a/up": "train", "a/root": "", "b/loop": "train/b"}
    links |= {"c": "train/b", "b/4.png": "train/.pool/4.png", "a/3.png": "train/b/3.png"}
    for name, target in links.items():
        (tmp_path / "train" / name).symlink_to(tmp_path / target)
    assert listed(tmp_path, "train") == [
        ("train/a/2.png", "a"),
        ("train/a/again/1.png", "a"),
        ("train/b/3.png", "b"),
        ("train/b/4.png", "b"),
    ]
    about = "\n".join(image_folder.read(tmp_path, "train").about)
    assert (
        f"ignored: 5 (link to a folder that is read elsewhere); the first: {tmp_path}/train/a/linked" in about
    )
    assert f"ignored: 1 (link to an image of another class); the first: {tmp_path}/train/a/3.png" in about
    assert "without images" not in about  # 'c' is one of the links


@pytest.mark.parametrize(
    ("files", "split", "names", "words"),
    [
        (["train/a/1.png", "test/a/1.png"], "mine", None, "no split 'mine'; expected one of 'train', 'test'"),
        (["a/1.png", "b/1.png"], "test", None, "no split 'test', because the folders are classes"),
        (["val/a/1.png", "val/Hawk/1.png"], "val", ("a", "owl"), "the model has no class 'Hawk'"),
        (["a/1.png", "a/2.png"], "train", None, r"only one class has images \('a'\)"),
        (["train/a/1.txt", "train/b/1.txt"], "train", None, "no images found in 2 class folders"),
        (["1.png"], "train", None, "no images found in 0 class folders"),
    ],
)  # fmt: skip
def test_errors(tmp_path, files, split, names, words):
    make(tmp_path, *files)
    with pytest.raises(UserError, match=words):
        opened(tmp_path, split, names)


def test_errors_of_the_place(tmp_path):
    with pytest.raises(UserError, match="none: no such file or folder; expected"):
        opened(tmp_path / "none", "train")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="this is a file; expected one folder per class"):
        opened(tmp_path / "file", "train")
    make(tmp_path / "odd", "a/1.png")
    make(Path(os.fsdecode(os.fsencode(tmp_path / "odd") + b"/\xff")), "1.png")
    with pytest.raises(UserError, match=r"b'\\xff' is not valid UTF-8"):
        opened(tmp_path / "odd", "train")


def test_a_class_may_be_called_train(tmp_path):
    make(tmp_path, "train/1.png", "train/2.png", "bus/1.png", "bus/2.png")
    assert image_folder.read(tmp_path, "train").names == ["bus", "train"]


@pytest.mark.parametrize(
    ("files", "known"),
    [
        (["cat/1.png", "dog/deep/2.jpg"], True),
        (["train/cat/1.png", "val/cat/2.png"], True),
        (["test/cat/1.png"], True),
        (["images/train/1.png", "labels/train/1.txt"], False),  # Darknet's
        (["train/images/1.png", "train/labels/1.txt"], False),
        (["JPEGImages/1.png", "Annotations/1.xml"], False),  # Pascal VOC's
        (["1.png", "2.png"], False),
        (["cat/1.txt", "dog/2.txt"], False),
    ],
)
def test_class_folders_are_reported_from_detections(tmp_path, files, known):
    assert bool(image_folder.recognize(make(tmp_path, *files))) == known


def test_the_reading_is_out_of_date_when_a_folder_changes(tmp_path):
    make(tmp_path, "train/a/1.png", "train/a/in/2.png", "train/b/3.png", "val/a/4.png")
    (tmp_path / "train/b/empty.png").touch()
    depends = {Path(path).relative_to(tmp_path).as_posix() for path in read(tmp_path).depends}
    assert depends == {".", "train", "val", "train/a", "train/a/in", "train/b", "train/b/empty.png"}


def read(root: Path) -> Raw:
    return image_folder.read(root, "train")


def test_an_unreadable_image_is_found_and_stays(tmp_path):
    make(tmp_path, "train/a/1.png", "train/b/2.png")
    (tmp_path / "train/a/0.png").write_text("no image")
    data = read(tmp_path)
    assert len(data.paths) == 3 and data.sizes.tolist() == [[0, 0], [3, 4], [3, 4]]
    assert data.findings.counts == {"unreadable image": 1}
    with pytest.raises(UserError, match="1 of the 3 images in the split 'train' cannot be read"):
        open_images(Data(root=str(tmp_path), format="image-folder", max_bad=0.3), "train")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["train/1.png", "valid/2.png"], "no class folders in 'train', 'valid'"),
        (
            ["train/1.png", "train/x.txt"],
            r"other files \(1\) of no known layout, such as 'train/x.txt'; no class folders in 'train'",
        ),
        (["Train/1.png"], "no class folders in 'Train'"),
        (["cam 1/1.png", "cam 1/1.txt"], r"'cam 1/1.txt' looks like YOLO labels; add a file 'classes.txt'"),
        (
            ["train/1.png", "train/_classes.csv"],
            "'train/_classes.csv' looks like multi-label classes; images with several classes are not",
        ),
    ],
)
def test_splits_and_label_files_are_named_instead_of_read_as_classes(tmp_path, files, said):
    make(tmp_path, *(file for file in files if file.endswith(".png")))
    contents = {".txt": "0 0.5 0.5 1 1\n" * ("x.txt" not in said), ".csv": "filename, cat, dog\n1.png, 0, 1"}
    for file in (tmp_path / name for name in files if not name.endswith(".png")):
        file.parent.mkdir(exist_ok=True)
        file.write_text(contents[file.suffix])
    with pytest.raises(UserError, match=said):
        recognize(str(tmp_path))
    if "no class folders" in said:
        with pytest.raises(UserError, match="so these are not classes"):
            image_folder.read(tmp_path, "train")


def test_splits_may_be_capitalized(tmp_path):
    make(tmp_path, "Train/owl/1.png", "Test/owl/2.png")
    assert listed(tmp_path, "train") == [("Train/owl/1.png", "owl")]
