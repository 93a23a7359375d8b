"""Darknet data: layouts found, boxes read exactly, and every fault told with its place."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rankless.data.formats.darknet import DarknetData, read_darknet
from rankless.data.formats.darknet_layout import label_path
from rankless.errors import UserError


def put(folder: Path, name: str, labels: str | bytes | None = "0 0.5 0.5 0.2 0.4\n") -> Path:
    """A picture of 40 × 20 pixels at images/NAME.jpg, and its label file."""
    picture = folder / "images" / f"{name}.jpg"
    picture.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 20)).save(picture)
    if labels is not None:
        file = folder / "labels" / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(labels if isinstance(labels, bytes) else labels.encode())
    return picture


def described(folder: Path, text: str) -> str:
    (folder / "data.yaml").write_text(text, encoding="utf-8")
    return str(folder / "data.yaml")


def faults_of(root: Path | str, split: str = "train") -> str:
    with pytest.raises(UserError) as caught:
        read_darknet(str(root), split)
    return str(caught.value)


def names(data: DarknetData) -> list[str]:
    return [Path(path).stem for path in data.paths]


def test_boxes_become_pixels(tmp_path: Path) -> None:
    put(tmp_path, "train/a", "1 0.5 0.5 0.2 0.4\n0 0.25 0.5 0.5 1\n")
    put(tmp_path, "train/b", "")
    put(tmp_path, "train/c", "2 0.75 0.25 0.5 0.5")
    data = read_darknet(described(tmp_path, "train: images/train\nnames: [x, y, z]\nnc: 3\n"), "train")
    assert data.class_names == ("x", "y", "z") and len(data) == 3 and data.notes == []
    assert data.offsets.tolist() == [0, 2, 2, 3] and data.boxes.dtype == np.float32
    first = data.picture(0)
    assert first.image.shape == (3, 20, 40)
    assert torch.allclose(first.boxes, torch.tensor([[16.0, 6, 24, 14], [0, 0, 20, 20]]))
    assert first.labels.tolist() == [1, 0] and first.labels.dtype == torch.int64
    assert data.picture(1).boxes.shape == (0, 4)
    boxes, labels, height, width = data.ground_truth(2)
    assert (boxes.tolist(), labels.tolist(), height, width) == ([[20, 0, 40, 10]], [2], 20, 40)
    assert data.source(2) == data.paths[2]


def test_boxes_are_of_the_upright_picture(tmp_path: Path) -> None:
    picture = put(tmp_path, "train/a", "0 0.5 0.25 1 0.5")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(picture, exif=exif)
    data = read_darknet(described(tmp_path, "train: images/train\nnames: [x]\n"), "train")
    assert data.picture(0).image.shape == (3, 40, 20)
    assert data.picture(0).boxes.tolist() == data.ground_truth(0)[0].tolist() == [[0, 0, 20, 20]]


@given(
    box=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).flatmap(
        lambda side: st.tuples(
            st.floats(side[0] / 2, 1 - side[0] / 2),
            st.floats(side[1] / 2, 1 - side[1] / 2),
            *map(st.just, side),
        )
    )
)
def test_any_box_survives_six_decimals(
    tmp_path_factory: pytest.TempPathFactory, box: tuple[float, ...]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "decimals"
    put(folder, "train/a", "0 " + " ".join(f"{value:.6f}" for value in box))
    data = read_darknet(described(folder, "train: images/train\nnames: [x]\n"), "train")
    x, y, w, h = box
    expected = np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2]) * [40, 20, 40, 20]
    assert np.abs(data.picture(0).boxes[0].numpy() - expected).max() < 1e-4
    assert data.notes == []


def test_layouts_of_data_yaml(tmp_path: Path) -> None:
    for name in ("train/b", "train/a", "extra/deep/c", "val/d"):
        put(tmp_path, name)
    (tmp_path / "list.txt").write_text("./images/train/b.jpg\r\n\r\nimages/val/d.jpg\r\n")
    root = described(
        tmp_path,
        "train: [images/train, images/extra]\nval: ../images/val\ntest: list.txt\nnames: {1: dog, 0: cat}\n"
        "nc: 2\nlicense: free\n",
    )
    assert names(read_darknet(root, "train")) == ["a", "b", "c"]
    assert names(read_darknet(root, "val")) == ["d"]  # Roboflow's '../'
    assert names(read_darknet(root, "test")) == ["b", "d"]
    assert read_darknet(str(tmp_path), "train").class_names == ("cat", "dog")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    assert names(
        read_darknet(described(moved, f"path: {tmp_path}\ntrain: images/train\nnc: 1\n"), "train")
    ) == [
        "a",
        "b",
    ]
    fault = faults_of(root, "testing")
    assert "'train', 'val', 'test'" in fault and "license" not in fault


@pytest.mark.parametrize("swapped", [False, True])
def test_layouts_of_folders(tmp_path: Path, swapped: bool) -> None:
    if swapped:
        put(tmp_path / "train", "a")
        put(tmp_path / "valid", "b")
    else:
        put(tmp_path, "train/a")
        put(tmp_path, "valid/b")
    assert "found no class names" in faults_of(tmp_path)
    (tmp_path / "classes.txt").write_bytes("\ufeffépée\r\nB\r\n".encode())
    data = read_darknet(str(tmp_path), "train")
    assert names(data) == ["a"] and data.class_names == ("épée", "B")
    assert "'train', 'valid'" in faults_of(tmp_path, "val")
    (tmp_path / "classes.txt").rename(tmp_path / "obj.names")
    assert names(read_darknet(str(tmp_path), "valid")) == ["b"]
    (tmp_path / "obj.names").unlink()
    described(tmp_path, "names: [one]\n")
    assert read_darknet(str(tmp_path), "train").class_names == ("one",)


def test_a_folder_without_splits_says_how_to_lay_it_out(tmp_path: Path) -> None:
    put(tmp_path, "a")
    fault = faults_of(tmp_path)
    assert "images/train" in fault and "labels/val" in fault
    assert "data.yaml" in faults_of(tmp_path / "labels")
    fault = faults_of(tmp_path / "nowhere")
    assert "nowhere" in fault and "digits" in fault


def test_odd_names_and_line_ends(tmp_path: Path) -> None:
    root = tmp_path / "mon dossier é 猫"
    put(root, "train/b c", b"\xef\xbb\xbf0 .5 .5 .1 .1\r\n\r\n 1.0\t.5  .5 .1 .1 \r\n")
    put(root, "train/Z", "")
    upper = put(root, "train/ü", "")
    upper.rename(upper.with_suffix(".JPG"))
    Image.new("RGB", (4, 4)).save(root / "images/train/._b c.jpg")
    data = read_darknet(described(root, "train: images/train\nnames: [x, y]\n"), "train")
    assert names(data) == ["Z", "b c", "ü"]
    assert data.labels.tolist() == [0, 1]
    assert len(data.notes) == 1 and "1 hidden" in data.notes[0]


def test_missing_label_files_are_counted(tmp_path: Path) -> None:
    put(tmp_path, "train/a")
    put(tmp_path, "train/b", None)
    root = described(tmp_path, "train: images/train\nnames: [x]\n")
    data = read_darknet(root, "train")
    assert data.offsets.tolist() == [0, 1, 1]
    assert "1 of 2" in data.notes[0] and str(tmp_path / "labels/train/b.txt") in data.notes[0]
    (tmp_path / "labels/train/a.txt").unlink()
    assert "Not one of the 2" in faults_of(root)


def test_labels_lie_beside_pictures_without_a_folder_called_images(tmp_path: Path) -> None:
    assert label_path("/a/images/b/images/c/d.jpg") == "/a/images/b/labels/c/d.txt"
    assert label_path("/a/pictures/d.e.jpeg") == "/a/pictures/d.e.txt"
    assert label_path("/images.jpg") == "/images.txt"
    folder = tmp_path / "obj"
    folder.mkdir()
    Image.new("RGB", (4, 4)).save(folder / "a.png")
    (folder / "a.txt").write_text("0 .5 .5 1 1")
    assert read_darknet(described(tmp_path, "train: obj\nnames: [x]\n"), "train").labels.tolist() == [0]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("2 .5 .5 .1 .1", "class out of range: '2 0.5 0.5 0.1 0.1', expected a class from 0 to 1"),
        ("-1 .5 .5 .1 .1", "class out of range"),
        ("0.5 .5 .5 .1 .1", "class not a whole number"),
        ("0 nan .5 .1 .1", "not finite"),
        ("0 .5 .5 inf .1", "not finite"),
        ("nan .5 .5 .1 .1", "not finite"),
        ("0 .5 .5 0 .1", "size not positive"),
        ("0 .5 .5 .1 -.1", "size not positive"),
        ("0 .5 .5 .1", "wrong number of columns: 4 columns, expected 5"),
        ("0 .1 .1 .2 .1 .2 .2", "(polygons are not read)"),
        ("cat .5 .5 .1 .1", "not a number: 'cat .5 .5 .1 .1'"),
        ("0 20 10 8 8", "(not pixels)"),
        ("0 -0.2 .5 .1 .1", "not shares"),
        ("0 1.009 .5 .01 .1", "box outside the picture"),
        ("0 .5 -.009 .1 .01", "box outside the picture"),
    ],
)
def test_each_fault_is_told_with_its_place(tmp_path: Path, line: str, kind: str) -> None:
    put(tmp_path, "train/a", f"0 .5 .5 .1 .1\n{line}\n")
    fault = faults_of(described(tmp_path, "train: images/train\nnames: [x, y]\n"))
    assert f"{tmp_path / 'labels/train/a.txt'}:2: " in fault and kind in fault
    assert fault.endswith("1 label lines are faulty: mend them, or take them out.")


def test_faults_come_all_at_once(tmp_path: Path) -> None:
    put(tmp_path, "train/b", "9 .5 .5 .1 .1\n" * 25)
    put(tmp_path, "train/a", "0 .5 .5 .1\n0 .5 .5 .1 .1\n0 .5 .5 0 .1\n")
    put(tmp_path, "train/c", b"\xff\xfe0\x00 \x00")
    with pytest.raises(UserError) as caught:
        read_darknet(described(tmp_path, "train: images/train\nnames: [x, y]\n"), "train")
    faults = caught.value.faults
    assert len(faults) == 22
    assert "a.txt:1: wrong number" in faults[0] and "a.txt:3: size" in faults[1] and "b.txt:1:" in faults[2]
    assert "b.txt:18:" in faults[19]
    assert faults[20] == "… and 8 more: 7 × class out of range, 1 × encoding."
    assert faults[21].startswith("28 label lines")


def test_boxes_over_the_edge_are_clipped_and_counted(tmp_path: Path) -> None:
    put(tmp_path, "train/a", "0 .05 .5 .104 .5\n0 .95 .5 .2 .5\n0 .5 .5 1.000001 1\n0 .5 .5 .1 .1\n")
    data = read_darknet(described(tmp_path, "train: images/train\nnames: [x]\n"), "train")
    assert torch.allclose(
        data.picture(0).boxes[:3], torch.tensor([[0, 5, 4.08, 15], [34, 5, 40, 15], [0, 0, 40, 20]])
    )
    assert [note[:12] for note in data.notes] == ["1 of 4 boxes"] * 2
    assert "less than 1 %" in data.notes[0] and "more than 1 %" in data.notes[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: images/none\nnames: [x]\n", "'train: images/none' is not there"),
        ("train: [images/none, images/nil]\nnames: [x]\n", "images/nil"),
        ("train: empty\nnames: [x]\n", "has no pictures; looked in empty for files that end in .bmp"),
        ("train: images/train\n", "'names' is None"),
        ("train: images/train\nnames: []\n", "'names' is []"),
        ("train: images/train\nnames: [x]\nnc: 2\n", "'nc' is 2, expected 1"),
        ("train: images/train\nnames: {1: x, 2: y}\n", "expected 0 to 1, each once"),
        ("train: images/train\nnames: {a: x}\n", "expected 0 to 0"),
        ("train: data.yaml\nnames: [x]\n", "expected a folder or a .txt list"),
        ("train: list.txt\nnames: [x]\n", "list.txt:2: no picture 'gone.jpg'"),
        ("train: list.txt\nnames: [x]\n", "list.txt:3: 'data.yaml' is no picture"),
        ("train: [\n", "cannot be read as YAML"),
        ("- a\n- b\n", "found a list"),
    ],
)
def test_faults_of_data_yaml(tmp_path: Path, text: str, said: str) -> None:
    put(tmp_path, "train/a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.txt").write_text("images/train/a.jpg\ngone.jpg\ndata.yaml\n")
    root = described(tmp_path, text)
    assert said in faults_of(root)
    assert root in faults_of(root) or "list.txt" in said


def test_a_picture_listed_twice_is_noted(tmp_path: Path) -> None:
    put(tmp_path, "train/a")
    root = described(tmp_path, "train: [images/train, images/train]\nnames: [x]\n")
    assert "1 pictures" in read_darknet(root, "train").notes[0]


def test_it_pickles(tmp_path: Path) -> None:
    put(tmp_path, "train/a")
    data = read_darknet(described(tmp_path, "train: images/train\nnames: [x]\n"), "train")
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy.picture(0).boxes, data.picture(0).boxes)
