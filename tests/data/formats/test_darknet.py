"""Darknet data: layouts found, boxes read exactly, and every error reported with its line."""

import shutil
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rankless.curation.data_set import open_data_set
from rankless.data.datasets.annotated import BoxedImages
from rankless.data.datasets.open_split import examine, open_annotations
from rankless.data.formats.darknet import label_folders, read, recognize, splits
from rankless.data.formats.darknet_description import read_description
from rankless.data.index.annotations import Annotations
from rankless.errors import UserError


def put(folder: Path, name: str, labels: str | bytes | None = "0 0.5 0.5 0.2 0.4\n") -> Path:
    """An image of 40 × 20 pixels at images/NAME.jpg, and its label file."""
    sample = folder / "images" / f"{name}.jpg"
    sample.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 20)).save(sample)
    if labels is not None:
        file = folder / "labels" / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(labels if isinstance(labels, bytes) else labels.encode())
    return sample


def described(folder: Path, text: str) -> str:
    (folder / "data.yaml").write_text(text, encoding="utf-8")
    return str(folder / "data.yaml")


def problems_of(root: Path | str, split: str = "train") -> str:
    with pytest.raises(UserError) as caught:
        open_annotations(str(root), split)
    return str(caught.value)


def names(data: Annotations) -> list[str]:
    return [Path(path).stem for path in data.paths()]


def counts(data: Annotations) -> dict[str, int]:
    return data.findings.counts


def test_boxes_become_pixels(tmp_path: Path) -> None:
    put(tmp_path, "train/a", "1 0.5 0.5 0.2 0.4\n0 0.25 0.5 0.5 1\n")
    put(tmp_path, "train/b", "")
    put(tmp_path, "train/c", "2 0.75 0.25 0.5 0.5")
    root = described(tmp_path, "train: images/train\nnames: [x, y, z]\nnc: 3\n")
    found = open_annotations(root, "train")
    assert found.class_names == ("x", "y", "z") and len(found) == 3 and counts(found) == {"empty": 1}
    assert found.offsets.tolist() == [0, 2, 2, 3] and found.boxes.dtype == np.float32
    assert found.notes[0].startswith(f"{root}: read as Darknet (YOLO) because 'data.yaml' is a ")
    data = BoxedImages(found)
    first = data.read(0)
    assert first.image.shape == (3, 20, 40)
    assert torch.allclose(first.boxes, torch.tensor([[16.0, 6, 24, 14], [0, 0, 20, 20]]))
    assert first.labels.tolist() == [1, 0] and first.labels.dtype == torch.int64
    assert data.read(1).boxes.shape == (0, 4)
    truth = data.ground_truth(2)
    boxes, labels, height, width, flags = truth.boxes, truth.labels, truth.height, truth.width, truth.flags
    assert (boxes.tolist(), labels.tolist(), height, width) == ([[20, 0, 40, 10]], [2], 20, 40)
    assert data.source(2) == str(tmp_path / "images/train/c.jpg") and flags.tolist() == [0]


def test_boxes_are_of_the_upright_image(tmp_path: Path) -> None:
    sample = put(tmp_path, "train/a", "0 0.5 0.25 1 0.5")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(sample, exif=exif)
    data = BoxedImages(open_annotations(described(tmp_path, "train: images/train\nnames: [x]\n"), "train"))
    assert data.read(0).image.shape == (3, 40, 20)
    assert data.read(0).boxes.tolist() == data.ground_truth(0).boxes.tolist() == [[0, 0, 20, 20]]


@pytest.mark.parametrize("line", ["0 nan .5 .1 .1", "0 .5 .5 inf .1", "0 .1 .1 .2 nan .3 .3 .4 .4"])
def test_a_line_with_a_number_that_is_not_finite_is_shown_unchanged(tmp_path: Path, line: str) -> None:
    put(tmp_path, "train/a", f"0 .5 .5 .1 .1\n{line}\n")
    root = described(tmp_path, "train: images/train\nnames: [x]\n")
    (found,) = examine(root, "train").findings.first["not finite"]
    assert line in found.problem and found.where.endswith("a.txt:2")


def test_classes_that_are_only_counted_are_numbers_and_a_note_says_so(tmp_path: Path) -> None:
    put(tmp_path, "train/a", "2 .5 .5 .1 .1\n")
    root = described(tmp_path, "train: images/train\nnc: 3\n")
    found = open_annotations(root, "train")
    assert found.class_names == ("0", "1", "2")
    (note,) = (one for one in found.about if "'nc'" in one)
    assert "'names'" in note and "data.yaml" in note
    named = open_annotations(root, "train", classes=("cat", "dog", "cow"))
    assert named.class_names == ("cat", "dog", "cow") and named.labels.tolist() == [2]
    assert not any("'nc'" in one for one in named.about)
    described(tmp_path, "train: images/train\nnc: 3\nnames: [cat, dog, cow]\n")
    assert not any("'nc'" in one for one in open_annotations(root, "train").about)


def test_layouts_of_data_yaml(tmp_path: Path) -> None:
    for name in ("train/b", "train/a", "extra/deep/c", "val/d"):
        put(tmp_path, name)
    (tmp_path / "list.txt").write_text("./images/train/b.jpg\r\n\r\nimages/val/d.jpg\r\n")
    root = described(
        tmp_path,
        "train: [images/train, images/extra]\nval: ../images/val\ntest: list.txt\nnames: {1: dog, 0: cat}\n"
        "nc: 2\nlicense: free\n",
    )
    assert names(open_annotations(root, "train")) == ["a", "b", "c"]
    assert names(open_annotations(root, "val")) == ["d"]  # Roboflow's '../'
    assert names(open_annotations(root, "test")) == ["b", "d"]
    assert open_annotations(str(tmp_path), "train").class_names == ("cat", "dog")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    assert names(
        open_annotations(described(moved, f"path: {tmp_path}\ntrain: images/train\nnc: 1\n"), "train")
    ) == ["a", "b"]
    problem = problems_of(root, "other")
    assert "'train', 'val', 'test'" in problem and "license" not in problem


@pytest.mark.parametrize("swapped", [False, True])
def test_layouts_of_folders(tmp_path: Path, swapped: bool) -> None:
    if swapped:
        put(tmp_path / "train", "a")
        put(tmp_path / "valid", "b")
    else:
        put(tmp_path, "train/a")
        put(tmp_path, "valid/b")
    assert ": no class names" in problems_of(tmp_path)
    (tmp_path / "classes.txt").write_text(" \n")
    assert "classes.txt: the file is empty; expected one class name per line" in problems_of(tmp_path)
    (tmp_path / "classes.txt").write_bytes("\ufeffépée\r\nB\r\n".encode())
    data = open_annotations(str(tmp_path), "train")
    assert names(data) == ["a"] and data.class_names == ("épée", "B")
    assert "'train', 'valid'" in problems_of(tmp_path, "test")
    assert splits(tmp_path) == ["train", "valid"]
    (tmp_path / "classes.txt").rename(tmp_path / "obj.names")
    assert names(open_annotations(str(tmp_path), "valid")) == ["b"]
    assert names(open_annotations(str(tmp_path), "val")) == ["b"]
    (tmp_path / "obj.names").unlink()
    described(tmp_path, "names: [one]\n")
    assert open_annotations(str(tmp_path), "train").class_names == ("one",)
    assert splits(tmp_path) == ["train", "valid"]


def test_undivided_data_is_one_split_and_nothing_is_none(tmp_path: Path) -> None:
    put(tmp_path / "a", "a")
    (tmp_path / "a/classes.txt").write_text("x")
    data = open_annotations(str(tmp_path / "a"), "train")
    assert names(data) == ["a"] and splits(tmp_path / "a") == ["train"] and "no splits" in data.notes[1]
    assert "no split 'val'; expected 'train'; choose" in problems_of(tmp_path / "a", "val")
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in ("images/a.jpg", "labels/a.txt", "classes.txt"):
        shutil.copy(tmp_path / "a" / file, flat)
    assert names(open_annotations(str(flat), "train")) == ["a"] and splits(flat) == ["train"]
    for folder in (tmp_path / "a" / "labels", tmp_path / "a" / "images", tmp_path / "nowhere"):
        assert not recognize(folder)
        expected = f"data set {folder.parent}" if folder.exists() else "data.yaml"
        assert expected in problems_of(folder)
    assert "digits" in problems_of(tmp_path / "nowhere")


def test_images_outside_the_folders_of_splits_are_reported(tmp_path: Path) -> None:
    put(tmp_path, "train/a")
    put(tmp_path, "loose")
    (tmp_path / "classes.txt").write_text("x")
    data = open_annotations(str(tmp_path), "train")
    assert counts(data) == {"left out": 1}
    assert "1 image outside" in str(data.findings.first["left out"][0])


def test_odd_names_and_line_ends(tmp_path: Path) -> None:
    root = tmp_path / "mon dossier é 猫"
    put(root, "train/b c", b"\xef\xbb\xbf0 .5 .5 .1 .1\r\n\r\n 1.0\t.5  .5 .1 .1 \r\n")
    put(root, "train/Z", "")
    upper = put(root, "train/ü", "")
    upper.rename(upper.with_suffix(".JPG"))
    Image.new("RGB", (4, 4)).save(root / "images/train/._b c.jpg")
    data = open_annotations(described(root, "train: images/train\nnames: [x, y]\n"), "train")
    assert names(data) == ["Z", "b c", "ü"]
    assert data.labels.tolist() == [0, 1]
    assert counts(data) == {"empty": 2, "left out": 1}


def test_missing_label_files_are_counted(tmp_path: Path) -> None:
    put(tmp_path, "train/a")
    put(tmp_path, "train/b", None)
    root = described(tmp_path, "train: images/train\nnames: [x]\n")
    data = open_annotations(root, "train")
    assert data.offsets.tolist() == [0, 1, 1]
    assert counts(data) == {"no label file": 1} and str(tmp_path / "images/train/b.jpg") in data.notes[-1]
    (tmp_path / "labels/train/a.txt").unlink()
    problem = problems_of(root)
    assert "have no label files" in problem and str(tmp_path / "labels/train/a.txt") in problem


def test_labels_lie_beside_images_without_a_folder_called_images(tmp_path: Path) -> None:
    assert label_folders("/a/images/b/images/c") == ["/a/images/b/labels/c", "/a/images/b/images/c"]
    assert label_folders("/a/JPEGImages") == ["/a/labels", "/a/JPEGImages"]  # Darknet's own recipe for VOC
    assert label_folders("/a/photos") == ["/a/photos"]
    folder = tmp_path / "obj"
    folder.mkdir()
    Image.new("RGB", (4, 4)).save(folder / "a.png")
    (folder / "a.txt").write_text("0 .5 .5 1 1")
    assert open_annotations(described(tmp_path, "train: obj\nnames: [x]\n"), "train").labels.tolist() == [0]


@pytest.mark.parametrize(
    ("line", "kind", "found"),
    [
        ("2 .5 .5 .1 .1", "class out of range", "class 2 at 0.5 0.5 0.1 0.1; expected a class from 0 to 1"),
        ("-1 .5 .5 .1 .1", "class out of range", "class -1"),
        ("1e30 .5 .5 .1 .1", "class out of range", ""),
        ("0.5 .5 .5 .1 .1", "not a number", "where class is a whole number"),
        ("nan .5 .5 .1 .1", "not a number", "'nan .5"),
        ("0 .5 .5 1_0 .1", "not a number", ""),
        ("0 .5 .5 .1", "not understood", "4 columns; expected 5"),
        ("0 .5 .5 .1 .1 .9", "not understood", "6 columns; expected 5"),
        ("cat .5 .5 .1 .1", "not a number", "'cat .5 .5 .1 .1'; expected numbers"),
        ("0 20 10 8 8", "not normalized", "not pixels"),
        ("0 .5 .5 .1 -1e300", "not normalized", ""),
    ],
)
def test_what_stops_is_reported_with_its_place(tmp_path: Path, line: str, kind: str, found: str) -> None:
    put(tmp_path, "train/a", f"0 .5 .5 .1 .1\n{line}\n")
    root = described(tmp_path, "train: images/train\nnames: [x, y]\n")
    problem = problems_of(root)
    assert f"{tmp_path / 'labels/train/a.txt'}:2: {kind}: " in problem and found in problem
    assert "rankless data check" in problem
    assert examine(root, "train").boxes.shape == (1, 4)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("0 .5 .5 1e308 1e999", "not finite"),
        ("0 .5 .5 0 .1", "no size"),
        ("0 .5 .5 .1 1e-12", "no size"),  # in float64 it has one, in float32 no more
        ("0 .5 .5 .1 -.1", "ends before it begins"),
        ("0 1.009 .5 .01 .1", "outside"),
        ("0 .5 -.009 .1 .01", "outside"),
        ("0 -0.2 .5 .1 .1", "outside"),
        ("0 .5 .5 .1 .1", "repeated"),
    ],
)
def test_a_damaged_box_costs_that_box(tmp_path: Path, line: str, kind: str) -> None:
    put(tmp_path, "train/a", f"0 .5 .5 .1 .1\n{line}\n1 .5 .5 .1 .1\n")
    data = open_annotations(described(tmp_path, "train: images/train\nnames: [x, y]\n"), "train")
    assert data.labels.tolist() == [0, 1]
    assert {name: count for name, count in counts(data).items() if name != "a pixel thin"} == {kind: 1}
    assert data.findings.first[kind][0].where == f"{tmp_path / 'labels/train/a.txt'}:2"


def test_errors_come_all_at_once(tmp_path: Path) -> None:
    put(tmp_path, "train/b", "9 .5 .5 .1 .1\n" * 25)
    put(tmp_path, "train/a", "0 .5 .5 .1\n0 .5 .5 .1 .1\nx .5 .5 0 .1\n")
    put(tmp_path, "train/c", b"\xff\xfe0\x00 \x00")
    problem = problems_of(described(tmp_path, "train: images/train\nnames: [x, y]\n"))
    for place in ("a.txt:1: not understood", "a.txt:3: not a number", "b.txt:1: class", "c.txt: unreadable"):
        assert place in problem
    assert "… and 20 more: class out of range" in problem


def test_boxes_over_the_edge_are_clipped_and_counted(tmp_path: Path) -> None:
    put(tmp_path, "train/a", "0 .05 .5 .104 .5\n0 .95 .5 .2 .5\n0 .5 .5 1.000001 1\n0 .5 .5 .1 .1\n")
    data = open_annotations(described(tmp_path, "train: images/train\nnames: [x]\n"), "train")
    assert np.allclose(data.boxes[:3], [[0, 5, 4.08, 15], [34, 5, 40, 15], [0, 0, 40, 20]])
    assert counts(data) == {"over the edge": 2}


def test_polygons_become_their_bounds(tmp_path: Path) -> None:
    put(tmp_path, "train/a", "0 .1 .3 .2 .1 .5 .2\n1 .5 .5 .2 .4\n0 .1 .3 nan .1 .5 .2\n")
    data = open_annotations(described(tmp_path, "train: images/train\nnames: [x, y]\n"), "train")
    assert np.allclose(data.boxes, [[4, 2, 20, 6], [16, 6, 24, 14]])
    assert counts(data) == {"outline": 2, "not finite": 1}


_BOX, _TRUE = ".5 .5 .5 .5", [10, 5, 30, 15]
_POINTS = " .3 .3 {0} .35 .34 {0} .4 .38 {0} .45 .42 {0}"


@pytest.mark.parametrize(
    ("lines", "given", "expected"),
    [
        ([_BOX + _POINTS.format("")] * 2, "kpt_shape: [4, 2]", [_TRUE]),  # the layout of YOLO pose labels
        ([_BOX + _POINTS.format("")] * 2, "", None),  # a polygon of six points, or a box with key points
        ([_BOX + _POINTS.format("")] * 2, "darknet:polygon", [[12, 6, 20, 10]]),
        ([_BOX + _POINTS.format("")] * 2, "darknet:cxcywh", [_TRUE]),
        ([_BOX + _POINTS.format("2")] * 2, "", [_TRUE]),  # flags, so these are no polygons
        ([_BOX + " .3 .3 .9"], "", [_TRUE]),  # an odd number of numbers
        ([_BOX + _POINTS.format(""), _BOX], "", None),
        ([".9 .9 .95 .9 .9 .95 .85 .9"], "", [[34, 18, 38, 19]]),  # the first numbers are no box in the image
        ([_BOX + _POINTS.format(""), ".1 .3 .2 .1 .5 .2"], "", [[12, 6, 20, 10], [4, 2, 20, 6]]),
    ],
)
def test_the_box_of_a_line_with_key_points_is_its_first_numbers(tmp_path, lines, given, expected) -> None:
    put(tmp_path, "train/a", "".join(f"0 {line}\n" for line in lines))
    shape = given if given.startswith("kpt_shape") else ""
    root = described(tmp_path, f"train: images/train\nnames: [x]\n{shape}\n")
    if expected is None:
        assert "a.txt:1: other form: all lines have 12 numbers" in (said := problems_of(root))
        assert "add 'kpt_shape: [4, 2]'" in said and "data.format=darknet:polygon" in said
        (tmp_path / "data.yaml").rename(tmp_path / "notes.yaml")
        (tmp_path / "classes.txt").write_text("x\n")
        assert "create a 'data.yaml' with 'train', 'val', 'names' and 'kpt_shape: [4, 2]'" in problems_of(
            tmp_path
        )
        return
    data = open_annotations(root, "train", "auto" if shape or not given else given)
    assert np.allclose(data.boxes, expected)
    assert ("key points" in counts(data)) == (expected == [_TRUE])


def test_another_split_shows_that_lines_are_polygons(tmp_path: Path) -> None:
    put(tmp_path, "train/a", f"0 {_BOX}{_POINTS.format('')}\n")
    put(tmp_path, "val/b", "0 .1 .3 .2 .1 .5 .2\n")
    root = described(tmp_path, "train: images/train\nval: images/val\nnames: [x]\n")
    assert np.allclose(open_annotations(root, "train").boxes, [[12, 6, 20, 10]])


def test_patterns_of_image_files(tmp_path: Path) -> None:
    for name in ("train/a", "train/b", "more/part-1/c"):
        put(tmp_path, name)
    root = described(tmp_path, "train: ['images/train/[a]*.jpg', 'images/*/part-?']\nnames: [x]\n")
    assert names(open_annotations(root, "train")) == ["a", "c"]
    put(tmp_path, "train/a2")  # a new file that matches
    assert names(open_annotations(root, "train")) == ["a", "a2", "c"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: images/none\nnames: [x]\n", "'train: images/none': no such file or folder"),
        ("train: [images/none, images/nil]\nnames: [x]\n", "images/nil"),
        ("train: empty\nnames: [x]\n", "empty for files with the extensions .bmp"),
        (
            "train: images/train\n",
            "no class names; expected a list of class names, starting with class 0; "
            "add, for example, 'names: [cat, dog]'",
        ),
        ("train: images/train\nnames: []\n", "'names' is empty"),
        ("train: images/train\nnames: [x]\nnc: 2\n", "'nc' is 2; expected 1"),
        ("train: images/train\nnames: {1: x, 2: y}\n", "expected 0 to 1"),
        ("train: images/train\nnames: {a: x}\n", "expected 0 to 0"),
        ("train: data.yaml\nnames: [x]\n", "expected a folder, an image or a .txt list"),
        ("train: list.txt\nnames: [x]\n", "list.txt:3: not understood: 'data.yaml' is not an image"),
        ("train: [\n", "data.yaml:2: column 1: invalid YAML"),
        ("train: " + "[" * 999 + "\n", "nested too deeply"),
        ("- a\n- b\n", "contains a list"),
        ("train: [[images/train]]\nnames: [x]\n", "'train' contains nested values"),
        ("train: images/train\nnames: [x]\nkpt_shape: [17]\n", "the number of key points and of the values"),
        ("train: images/train\nnames: [x]\nkpt_shape: [17, 3]\n", "a.txt:2: not understood: found 4 columns"),
        ("train: images/train\nnames: [x]\nnc: many\n", "'nc' is many; expected 1"),
        ("train: images/train/*.png\nnames: [x]\n", "'train: images/train/*.png': no such file or folder"),
        ("train: ~nobody-of-that-name/x\nnames: [x]\n", "no such file or folder"),
        ("train: " + "x" * 5000 + "\nnames: [x]\n", "no such file or folder"),
    ],
)
def test_errors_of_data_yaml(tmp_path: Path, text: str, said: str) -> None:
    put(tmp_path, "train/a", "0 .5 .5 .2 .4\n0 .1 .2 .3\n" if "17, 3" in text else "0 .5 .5 .2 .4\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.txt").write_text("images/train/a.jpg\ngone.jpg\ndata.yaml\n")
    root = described(tmp_path, text)
    assert said in problems_of(root)
    assert root in problems_of(root) or "list.txt" in said


@pytest.mark.parametrize(
    "text",
    ["train: images/none\nval: images/nil\nnames: [x]\nnc: 2\n", "train: images/none\nval: images/nil\n"],
)
def test_wrong_names_and_wrong_paths_are_reported_at_once(tmp_path: Path, text: str) -> None:
    put(tmp_path, "train/a")
    root = described(tmp_path, text)
    with pytest.raises(UserError) as caught:
        open_data_set(str(root))
    about_names, *about_paths = caught.value.problems
    assert ("'nc' is 2" if "nc" in text else "no class names") in about_names
    looked = f"no such file or folder; looked in {tmp_path}"
    assert about_paths == [f"{root}: '{one}': {looked}" for one in ("train: images/none", "val: images/nil")]


def test_an_error_about_a_missing_path_names_the_folder_that_was_searched(tmp_path: Path) -> None:
    root = described(tmp_path, "path: ../sets/gone\ntrain: images/train\nnames: [x]\n")
    said = problems_of(root)
    assert said.startswith(
        f"{root}: 'train: images/train': no such file or folder; looked in {tmp_path}, because "
    )
    assert (
        f"the folder in 'path: ../sets/gone' does not exist ({tmp_path.parent}/sets/gone); correct or" in said
    )


def test_names_stay_what_is_written(tmp_path: Path) -> None:
    """YAML would make False of no, 7 of 007 and a date of the last."""
    put(tmp_path, "train/a")
    root = described(tmp_path, "train: images/train\nnames: [no, 007, 2024-01-01, '1', ~]\nnc: 5\n")
    assert open_annotations(root, "train").class_names == ("no", "007", "2024-01-01", "1", "~")


def test_a_list_with_what_is_not_there(tmp_path: Path) -> None:
    for name in ("a", "b", "c d"):
        put(tmp_path, f"train/{name}")
    lines = [
        f"{tmp_path}/images/train/c d.jpg",
        "C:\\Users\\me\\set\\images\\train\\b.jpg",
        "/home/me/set/images/train/a.jpg",
        "images/train/gone.jpg",
        "./images/train/b.jpg",
    ]
    (tmp_path / "list.txt").write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8")
    data = open_annotations(described(tmp_path, "train: list.txt\nnames: [x]\n"), "train")
    assert names(data) == ["c d", "b", "a"]
    assert counts(data) == {"no image": 1, "listed twice": 1}
    assert "list.txt:4" in str(data.findings.first["no image"][0])
    assert "2 images are not at their listed paths" in "\n".join(data.notes)


def test_paths_of_another_machine(tmp_path: Path) -> None:
    put(tmp_path, "train/a")
    for entry in ("C:\\sets\\cells\\images\\train", "/kaggle/input/cells/images/train", "../../images/train"):
        root = described(tmp_path, f"path: ../datasets/cells\ntrain: '{entry}'\nnames: [x]\n")
        assert names(open_annotations(root, "train")) == ["a"]


def test_darknets_own_data_file(tmp_path: Path) -> None:
    """Its lists are relative to where Darknet is started: above the folder of the file."""
    data = tmp_path / "build" / "data"
    for name in ("obj/a", "obj/b"):
        sample = data / f"{name}.JPG"
        sample.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 20)).save(sample, "JPEG")
        sample.with_suffix(".txt").write_text("1 .5 .5 .2 .4\n")
    (data / "train.txt").write_text("data/obj/b.JPG\ndata/obj/a.JPG\n")
    (data / "valid.txt").write_text("data/obj/a.JPG\n")
    (data / "obj.names").write_text("cat\ndog\n")
    text = "# cells\nclasses= 2\ntrain  = data/train.txt\nvalid=data/valid.txt\nnames = data/obj.names\n"
    text += "backup = b/\n"
    (data / "obj.data").write_text(text)
    for root in (data, data / "obj.data"):
        assert splits(root) == ["train", "valid"]
        found = open_annotations(str(root), "train")
        assert names(found) == ["b", "a"] and found.class_names == ("cat", "dog")
        assert found.boxes.tolist() == [[16, 6, 24, 14]] * 2 and counts(found) == {}
        assert names(open_annotations(str(root), "val")) == ["a"]
    for change, said in (
        (("classes= 2", "classes= 3"), "'classes' is 3; expected 2"),
        (("names = data/obj.names", "names = data/none"), "'names = data/none': no such file in "),
        (("backup = b/", "nothing"), "obj.data:6: 'nothing'; expected 'key = value'"),
        (("backup = b/", "train = b"), "obj.data:6: key 'train' is given twice (first on line 3)"),
        (("data/train.txt", "data/none.txt"), "'train: data/none.txt': no such file or folder"),
    ):
        (data / "obj.data").write_text(text.replace(*change))
        assert said in problems_of(data)
    (data / "other.data").write_text(text)
    assert "several .data files" in problems_of(data)


def test_names_in_both_unicode_forms_and_odd_endings(tmp_path: Path) -> None:
    put(tmp_path, "train/猫 🐈 e")
    sample = put(tmp_path, "train/x")
    sample.rename(sample.with_name(unicodedata.normalize("NFC", "é") + ".JpEg"))
    label = tmp_path / "labels/train/x.txt"
    label.rename(label.with_name(unicodedata.normalize("NFD", "é") + ".TXT"))
    data = open_annotations(described(tmp_path, "train: images/train\nnames: [x]\n"), "train")
    assert data.offsets.tolist() == [0, 1, 2] and counts(data) == {}


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    put(tmp_path, "train/a")
    put(tmp_path / "elsewhere", "b")
    (tmp_path / "images/train/loop").symlink_to(tmp_path / "images")
    (tmp_path / "images/train/again").symlink_to(tmp_path / "elsewhere/images")
    (tmp_path / "images/train/twice").symlink_to(tmp_path / "elsewhere/images")
    (tmp_path / "labels/train/again").symlink_to(tmp_path / "elsewhere/labels")
    (tmp_path / "images/train/dead.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (tmp_path / "labels/train/dead.txt").write_text("0 .5 .5 .1 .1\n")
    data = open_annotations(described(tmp_path, "train: images/train\nnames: [x]\n"), "train")
    places = [str(Path(path).relative_to(tmp_path / "images/train")) for path in data.paths()]
    assert places == ["a.jpg", "again/b.jpg", "dead.jpg"]
    assert data.offsets.tolist() == [0, 1, 2, 2] and counts(data) == {"unreadable image": 1, "left out": 2}
    links = [f"{tmp_path}/images/train/{name}" for name in ("loop", "twice")]
    assert [finding.where for finding in data.findings.first["left out"]] == links


def test_a_label_file_may_spell_the_name_of_its_image_differently(tmp_path: Path) -> None:
    """URL encoding, case and Unicode form. Label files that belong to other images are not taken."""
    nfd = unicodedata.normalize("NFD", "é")
    labels = {"a b": "a%20b", "d%C3%A9": f"d{nfd}", "IMG_1": "img_1", "c": "c", "C": "", "k": "k", "K": "K"}
    for number, (image, label) in enumerate(labels.items(), 1):
        put(tmp_path, f"train/{image}", None)
        if label:
            put(tmp_path, f"elsewhere/{label}", f"0 {number / 10} .5 .1 .1\n")
    (tmp_path / "labels/elsewhere").rename(tmp_path / "labels/train")
    data = open_annotations(described(tmp_path, "train: images/train\nnames: [x]\n"), "train")
    centers = {
        Path(data.path(at)).stem: [round((box[0] + box[2]) / 8) for box, *_ in data.objects(at)]
        for at in range(len(data))
    }
    assert centers == {name: [at] if labels[name] else [] for at, name in enumerate(labels, 1)}
    assert counts(data) == {"no label file": 1}
    assert any(note.startswith("3 files were found under another spelling") for note in data.about)


def test_labels_without_images_are_counted(tmp_path: Path) -> None:
    put(tmp_path, "train/a")
    put(tmp_path, "train/b").unlink()
    (tmp_path / "labels/train/classes.txt").write_text("x")
    root = described(tmp_path, "train: images/train\nval: list.txt\nnames: [x]\n")
    data = open_annotations(root, "train")
    assert counts(data) == {"label without image": 1}
    assert data.findings.first["label without image"][0].where == str(tmp_path / "labels/train/b.txt")
    put(tmp_path, "train/b")
    (tmp_path / "list.txt").write_text("images/train/b.jpg")
    assert counts(open_annotations(root, "val")) == {}  # the other labels are of the other split's images


def test_a_folder_is_listed_once_however_many_files_it_has(tmp_path: Path) -> None:
    for number in range(20):
        put(tmp_path, f"train/{number}", None if number == 7 else "")
    root = described(tmp_path, "train: images/train\nnames: [x]\n")
    folders = dict.fromkeys((str(tmp_path / kind / "train") for kind in ("images", "labels")), 0)

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.scandir", "os.listdir") and arguments[0] in folders:
            folders[arguments[0]] += 1

    sys.addaudithook(count)
    open_annotations(root, "train")
    assert 1 <= min(folders.values()) <= max(folders.values()) <= 3


def test_every_file_that_was_read_is_listed(tmp_path: Path) -> None:
    put(tmp_path, "train/deep/a")
    root = described(tmp_path, "train: [images/train, list.txt]\nnames: [x]\n")
    (tmp_path / "list.txt").write_text("images/train/deep/a.jpg")
    found = set(read(Path(root), "train").depends)
    for name in ("data.yaml", "list.txt", "images/train", "images/train/deep", "labels/train/deep",
                 "labels/train/deep/a.txt"):  # fmt: skip
        assert str(tmp_path / name) in found
    (tmp_path / "data.yaml").unlink()
    (tmp_path / "classes.txt").write_text("x")
    found = set(read(tmp_path, "train").depends)
    assert {str(tmp_path), str(tmp_path / "images"), str(tmp_path / "classes.txt")} <= found


LINES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.lists(
            st.one_of(
                st.integers(-3, 9).map(str),
                st.floats().map(str),
                st.floats(0, 1).map(str),
                st.sampled_from(["1_0", "0x1", "١", "é", "-", "1e400", "\x00"]),
            ),
            max_size=9,
        ).map(lambda words: " ".join(words).encode()),
    ),
    max_size=6,
).map(b"\n".join)


@settings(settings.get_profile("files"))
@given(LINES)
def test_no_label_file_gives_a_traceback(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed labels"
    put(folder, "train/a", content)
    data = examine(described(folder, "train: images/train\nnames: [x, y]\n"), "train")
    boxes = data.boxes
    assert np.isfinite(boxes).all() and (boxes[:, 2:] > boxes[:, :2]).all() and (boxes >= 0).all()
    assert (boxes <= [40, 20, 40, 20]).all() and set(data.labels.tolist()) <= {0, 1}


def test_a_key_given_twice_in_a_data_yaml_is_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "data.yaml"
    file.write_text("train: a\nnames:\n  0: no\n  1: 007\nval: b\nnames: [x, y]\ntrain: c\n")
    with pytest.raises(UserError) as error:
        read_description(file)
    assert list(error.value.problems) == [
        f"{file}:{line}: key '{key}' is given twice (first on line {first}): keep only one"
        for line, key, first in ((6, "names", 2), (7, "train", 1))
    ]
