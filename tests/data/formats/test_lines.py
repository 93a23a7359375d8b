"""Annotation lines: paths with spaces, boxes by hand, and an outcome for everything that can be wrong."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rankless.curation.fitting_anchors import fitted_anchors
from rankless.data.datasets.open_split import examine
from rankless.data.formats import lines
from rankless.data.index.annotations import Annotations
from rankless.errors import UserError


def put(
    root: Path, *text: str, file: str = "train.txt", images: tuple[str, ...] = ("a.jpg", "b.jpg")
) -> Path:
    for name in images:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 20)).save(root / name)
    (root / "classes.txt").write_text("cat\ndog\n")
    (root / file).write_text("\n".join(text), encoding="utf-8")
    return root / file


def opened(root: Path, split: str = "train") -> Annotations:
    return examine(str(root), split, "lines")


def problem(root: Path, split: str = "train") -> str:
    with pytest.raises(UserError) as caught:
        opened(root, split)
    return str(caught.value)


def names(found: Annotations) -> list[str]:
    return [Path(path).name for path in found.paths()]


def test_lines_are_images_and_their_boxes(tmp_path):
    put(tmp_path, "b.jpg 1,2,11,12,1 0.5,0,40,20,0", "", "a.jpg", "b.jpg 3,3,5.25,5,1")
    assert lines.recognize(tmp_path) == "'train.txt' has lines 'path x1,y1,x2,y2,class'"
    found = opened(tmp_path)
    assert names(found) == ["b.jpg", "a.jpg"]
    assert found.class_names == ("cat", "dog")
    assert found.offsets.tolist() == [0, 3, 3]  # two lines name b.jpg, and a.jpg has no box
    assert found.boxes.tolist() == [[1, 2, 11, 12], [0.5, 0, 40, 20], [3, 3, 5.25, 5]]
    assert found.labels.tolist() == [1, 0, 1]
    assert found.findings.counts == {}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("my images/a b.jpg 1,2,3,4,0", "my images/a b.jpg"),
        ("a.jpg copy/c, d.PNG  1,2,3,4,0", "a.jpg copy/c, d.PNG"),
        ("漢字 🐈/é.webp\t1,2,3,4,0", "漢字 🐈/é.webp"),
        (".\\sub\\e.jpg 1,2,3,4,0", "sub/e.jpg"),
        ("C:\\Users\\me\\sub\\e.jpg 1, 2, 3, 4, 0", "sub/e.jpg"),
        ("/elsewhere/sub/e.jpg 1,2,3,4,0.0", "sub/e.jpg"),
        ("  e.jpg 1,2,3,4,0  ", "e.jpg"),
        ("data/e 1,2,3,4,0", "data/e.jpg"),
    ],
)
def test_paths(tmp_path, line, name):
    put(tmp_path, line, images=(name,))
    found = opened(tmp_path)
    assert found.path(0) == str(tmp_path / name)
    assert found.boxes.tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("boxes", "counts"),
    [
        ("1,2,3,4", {"not understood": 1}),
        ("1,2,3,4,0,0.9", {"not understood": 1}),
        ("1,2,3,x,0", {"not a number": 1}),
        ("1,2,3,,0", {"not a number": 1}),
        ("1,2,3,4,dog", {"not a number": 1}),
        ("1,2,3,4,0.5", {"not a number": 1}),
        ("1,2,3,4,nan", {"not a number": 1}),
        ("1,2,3,4,1e99", {"not a number": 1}),
        ("1,2,nan,4,0", {"not finite": 1}),
        ("1,2,3,4,2", {"class out of range": 1}),
        ("dog", {"not understood": 1}),
    ],
)
def test_dirty_boxes(tmp_path, boxes, counts):
    put(tmp_path, "b.jpg 1,2,9,9,0", f"a.jpg 7,7,9,9,1 {boxes}")
    found = opened(tmp_path)
    assert found.findings.counts == counts
    assert found.findings.first[next(iter(counts))][0].where == f"{tmp_path / 'train.txt'}:2"
    assert len(found.boxes) == 2


def test_images_that_are_not_there(tmp_path):
    put(tmp_path, "a.jpg 1,2,3,4,0", "gone.jpg 1,2,3,4,0", "")
    assert opened(tmp_path).findings.counts == {"no image": 1}
    put(tmp_path, "x/gone.jpg 1,2,3,4,0")
    assert "such as 'x/gone.jpg'" in problem(tmp_path)
    put(tmp_path, "", images=())
    assert "no split 'val'" in problem(tmp_path / "train.txt", "val")
    assert "no lines found" in problem(tmp_path / "train.txt")


@pytest.mark.parametrize(
    "place", ["classes.txt", "voc_classes.txt", "mine.names", "model_data/coco_classes.txt"]
)
def test_class_names(tmp_path, place):
    put(tmp_path, "a.jpg 1,2,3,4,1")
    (tmp_path / "classes.txt").unlink()
    assert "no class names found next to train.txt; add a 'classes.txt'" in problem(tmp_path)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_bytes(b"\xef\xbb\xbfein Hund\r\n\r\nK\xc3\xa4tzchen\r\n")
    assert opened(tmp_path).class_names == ("ein Hund", "Kätzchen")


def test_splits(tmp_path):
    put(tmp_path, "a.jpg 1,2,3,4,0")
    put(tmp_path, "a.jpg", file="val_annotations.txt")  # of negatives alone
    put(tmp_path, "Thank you for reading me.", file="README.txt")
    assert lines.splits(tmp_path) == ["train", "val"]
    assert len(opened(tmp_path, "val")) == 1
    own = put(tmp_path, "a.jpg 1,2,3,4,0", file="2024.txt")
    assert lines.recognize(own)
    assert len(opened(own)) == 1


def test_a_mark_and_line_ends_of_windows_are_no_error(tmp_path):
    put(tmp_path).write_bytes(b"\xef\xbb\xbfa.jpg 1,2,3,4,0\r\nb.jpg\r\n")
    assert lines.recognize(tmp_path)
    assert names(opened(tmp_path)) == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize(
    "text",
    [
        "a.jpg\nb.jpg",
        "2007_000027\n2007_000032",
        "2007_000027 1\n2007_000032 -1",
        "cat\ndog",
        "",
        "0 0.5 0.5 0.1 0.2",
    ],
)
def test_other_lists_are_not_taken_for_lines(tmp_path, text):
    put(tmp_path, text)
    assert lines.recognize(tmp_path) == ""
    assert lines.recognize(tmp_path / "train.txt") == ""
    assert lines.recognize(tmp_path / "a.jpg") == ""


def test_each_split_may_be_a_file_in_a_folder_of_its_own(tmp_path):
    put(tmp_path / "june", "a.jpg 1,2,11,12,1", "b.jpg 1,2,3,4,0", file="2007_train_label.txt")
    put(tmp_path / "july", "c.jpg 1,2,11,12,0", file="boxes.txt", images=("c.jpg",))
    train = examine(str(tmp_path), "june/2007_train_label.txt")
    assert names(train) == ["a.jpg", "b.jpg"]  # all of it: no fifth is set aside
    assert names(examine(str(tmp_path), "july/boxes.txt")) == ["c.jpg"]
    assert names(examine("elsewhere", str(tmp_path / "july" / "boxes.txt"))) == ["c.jpg"]
    assert fitted_anchors(str(tmp_path), split="june/2007_train_label.txt", count=2).boxes == 2


@settings(settings.get_profile("files"))
@given(
    content=st.binary(max_size=60)
    | st.lists(
        st.sampled_from(
            ["a.jpg", " ", ",", "1", "-3", "1,2,9,8,0", "\n", "nan", "x", ".", "\\", "\x00", "é", "1e9"]
        ),
        max_size=25,
    ).map(lambda words: "".join(words).encode())
)
def test_any_file(tmp_path_factory, content):
    root = tmp_path_factory.getbasetemp() / "any_lines"
    put(root).write_bytes(content)
    lines.recognize(root)
    with contextlib.suppress(UserError):
        opened(root / "train.txt")
