"""Pascal VOC: pixels counted from 1, every layout, and an outcome for everything that can be wrong."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rankless.data.detection import DetectionExamples, open_pictures
from rankless.data.formats.voc import VocData, read_voc
from rankless.data.formats.voc_annotation import parse
from rankless.data.formats.voc_layout import is_voc
from rankless.errors import UserError


def thing(box: object = (3, 5, 12, 10), name: str = "cat", extra: str = "") -> str:
    sides = (
        box
        if isinstance(box, str)
        else "".join(
            f"<{side}>{value}</{side}>"
            for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
        )
    )
    return f"<object><name>{name}</name>{extra}<bndbox>{sides}</bndbox></object>"


SIZE = "<size><width>40</width><height>20</height><depth>3</depth></size>"


def put(root: Path, name: str, *things: str, size: str = SIZE, split: str = "train") -> Path:
    """A picture of 40 × 20 pixels, its annotation, and a line in a split; returns the annotation."""
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 20)).save(root / "JPEGImages" / f"{name}.jpg")
    file = root / "Annotations" / f"{name}.xml"
    file.write_text(f"<annotation>{size}{''.join(things)}</annotation>", encoding="utf-8")
    with (root / "ImageSets" / "Main" / f"{split}.txt").open("a", encoding="utf-8") as lists:
        lists.write(f"{name}\n")
    return file


def faults_of(root: Path, split: str = "train") -> tuple[str, ...]:
    with pytest.raises(UserError) as caught:
        read_voc(str(root), split)
    return caught.value.faults


def stems(data: VocData) -> list[str]:
    return [Path(path).stem for path in data.paths]


def said(data: VocData) -> str:
    return "\n".join(data.notes[1:])


def test_pixels_count_from_one_and_the_last_is_inside(tmp_path: Path) -> None:
    put(tmp_path, "b", thing((1, 1, 40, 20), "dog"), thing((7, 3, 7, 4)), thing(("2.5", "2.0", 9.25, 4)))
    put(tmp_path, "a")
    data = read_voc(str(tmp_path), "train")
    assert stems(data) == ["b", "a"] and data.class_names == ("cat", "dog")  # pictures in the list's order
    first = data.picture(0)
    assert first.boxes.tolist() == [[0, 0, 40, 20], [6, 2, 7, 4], [1.5, 1, 9.25, 4]]
    assert first.labels.tolist() == [1, 0, 0] and first.labels.dtype == torch.int64
    assert first.boxes.dtype == torch.float32 and first.image.shape == (3, 20, 40)
    assert data.picture(1).boxes.shape == (0, 4) and data.offsets.tolist() == [0, 3, 3]
    assert data.source(1) == data.paths[1]
    assert (
        data.notes[0].startswith(f"{tmp_path}: read as Pascal VOC") and "2 pictures with 3" in data.notes[0]
    )


@given(
    box=st.tuples(st.integers(1, 40), st.integers(1, 20)).flatmap(
        lambda p: st.tuples(*map(st.just, p), st.integers(p[0], 40), st.integers(p[1], 20))
    )
)
def test_a_box_covers_just_the_pixels_it_numbers(
    tmp_path_factory: pytest.TempPathFactory, box: tuple[int, int, int, int]
) -> None:
    root = tmp_path_factory.getbasetemp() / "pixels"
    put(root, "a", thing(box))
    (root / "ImageSets/Main/train.txt").write_text("a\n")
    x1, y1, x2, y2 = (int(value) for value in read_voc(str(root), "train").boxes[0])
    numbers = np.arange(1, 41)[x1:x2], np.arange(1, 21)[y1:y2]
    assert [row[at] for at in (0, -1) for row in numbers] == list(box)


def test_every_split_numbers_the_classes_alike(tmp_path: Path) -> None:
    put(tmp_path, "a", thing(name="zebra"))
    put(tmp_path, "b", thing(name="ant"), split="val")
    put(tmp_path, "c", thing(name="newt"), split="test")
    (tmp_path / "Annotations" / "stray.xml").write_text(f"<annotation>{thing(name='no')}</annotation>")
    for split, label in (("train", 2), ("val", 0), ("test", 1)):
        data = read_voc(str(tmp_path), split)
        assert data.class_names == ("ant", "newt", "zebra") and data.labels.tolist() == [label]


def test_difficult_objects_are_no_targets_but_are_known(tmp_path: Path) -> None:
    hard = [f"<difficult>{flag}</difficult>" for flag in ("1", " 0 ", "", "Unspecified", "True")]
    put(tmp_path, "a", *(thing((1 + n, 1, 20, 20), extra=flag) for n, flag in enumerate(hard)))
    data = open_pictures(str(tmp_path), "train", images=1, seed=0, size=(64, 64))
    assert isinstance(data, VocData) and data.difficult.tolist() == [True, False, False, False, True]
    examples = DetectionExamples(data, (20, 40), 0, None)
    assert examples.item(0, 0).boxes[:, 0].tolist() == [1, 2, 3]
    truth = examples.ground_truth(0)
    assert truth.boxes[:, 0].tolist() == [0, 1, 2, 3, 4] and (truth.height, truth.width) == (20, 40)
    assert truth.difficult is not None and truth.difficult.tolist() == data.difficult.tolist()
    assert "2 of 5 boxes are marked difficult" in said(data)


def test_what_is_left_out_or_mended_is_counted(tmp_path: Path) -> None:
    put(tmp_path, "a", thing((9, 3, 5, 6)), thing((5, 8, 9, 2)), thing((5, 5, 9, 9)))
    put(
        tmp_path,
        "b",
        thing((41, 1, 50, 9)),
        thing((1, -9, 5, 0)),
        thing((-3, -3, 60, 30)),
        thing((0, 4, 9, 9)),
    )
    put(tmp_path, "c", *[thing((5, 5, 9, 9))] * 3, thing((5, 5, 9, 9), "dog"), thing((6, 6, 6, 6)))
    data = read_voc(str(tmp_path), "train")
    assert data.offsets.tolist() == [0, 1, 3, 6]
    assert data.boxes.tolist() == [
        [4, 4, 9, 9],
        [0, 0, 40, 20],
        [0, 3, 9, 9],
        [4, 4, 9, 9],
        [4, 4, 9, 9],
        [5, 5, 6, 6],
    ]
    assert data.labels.tolist() == [0, 0, 0, 0, 1, 0]
    for count, what in (
        (2, "end before they begin"),
        (2, "lie outside"),
        (2, "repeat another"),
        (1, "reached over the edge"),
        (1, "begin at pixel 0"),
        (1, "are at most one pixel"),
    ):
        assert f"{count} of 12 boxes {what}" in said(data)


def test_a_wrong_size_is_noted_and_the_picture_counts(tmp_path: Path) -> None:
    put(tmp_path, "a", thing((1, 1, 40, 20)), size=SIZE.replace("40", "400"))
    put(tmp_path, "b", size="")
    put(tmp_path, "c", size="<size><width>x</width><height>20</height></size>")
    data = read_voc(str(tmp_path), "train")
    assert data.boxes.tolist() == [[0, 0, 40, 20]] and data.sizes.tolist() == [[20, 40]] * 3
    assert "1 pictures are of another size" in said(data) and "a.jpg is 40 × 20, " in said(data)
    assert "says 400 × 20" in said(data)


def test_parts_of_an_object_are_not_its_box(tmp_path: Path) -> None:
    part = f"<part><name>head</name>{thing((1, 1, 2, 2))[8 + 16 : -9]}</part>"
    file = put(
        tmp_path,
        "a",
        f"<object>{part}<bndbox><ymax>9</ymax><xmax>8</xmax><ymin>2</ymin>"
        "<xmin>3</xmin></bndbox><name> cat\n</name></object>",
    )
    assert "head" in file.read_text()
    data = read_voc(str(tmp_path), "train")
    assert data.class_names == ("cat",) and data.boxes.tolist() == [[2, 1, 8, 9]]


@pytest.mark.parametrize(
    ("inside", "fault"),
    [
        (thing(name=""), "no class name: object 2 has no <name>"),
        (thing(("x", 1, 2, 3)), "not a number: object 2 ('cat'): <xmin> is 'x', expected a number of pixels"),
        (thing((1, "nan", 2, 3)), "<ymin> is 'nan'"),
        (thing((1, 1, "1e999", 3)), "<xmax> is '1e999'"),
        (thing("<xmin>1</xmin><ymin/><xmax>3</xmax><ymax>3</ymax>"), "object 2 ('cat') has no <ymin>"),
        ("<object><name>cat</name></object>", "no box: object 2 ('cat') has no <bndbox>"),
        (thing(extra="<difficult>7</difficult>"), "unknown flag: object 2 ('cat'): <difficult> is '7'"),
    ],
)  # fmt: skip
def test_each_fault_names_file_and_object(tmp_path: Path, inside: str, fault: str) -> None:
    file = put(tmp_path, "a", thing(), inside)
    (told, last) = faults_of(tmp_path)
    assert told.startswith(f"{file}: ") and fault in told
    assert last.startswith("1 faults in the data")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"<annotation>", "not XML: no element found"),
        (b"", "not XML"),
        (b"\xff\xfe<\0a\0", "not allowed"),
        (b'<?xml version="1.0" encoding="no-such"?><annotation/>', "not XML"),
        (b"<html/>", "not VOC: the outermost element is <html>"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', "not allowed: a document type"),
    ],
)
def test_what_is_no_annotation(tmp_path: Path, content: bytes, fault: str) -> None:
    put(tmp_path, "a", thing())
    put(tmp_path, "b", split="val").write_bytes(content)
    for split in ("train", "val"):  # another split's names would be unknown
        (told, _) = faults_of(tmp_path, split)
        assert f"b.xml: {fault}" in told


def test_all_faults_at_once_and_the_rest_counted(tmp_path: Path) -> None:
    put(tmp_path, "a", *[thing((1, 1, "x", "y"))] * 12)
    put(tmp_path, "b")
    (tmp_path / "JPEGImages" / "b.jpg").unlink()
    put(tmp_path, "c")
    (tmp_path / "JPEGImages" / "c.jpg").write_bytes(b"no picture")
    faults = faults_of(tmp_path)
    assert len(faults) == 22
    assert faults[20] == "… and 6 more: 1 × no picture, 4 × not a number, 1 × unreadable picture."
    assert faults[21].startswith("26 faults")
    (tmp_path / "Annotations/a.xml").write_text(f"<annotation>{thing()}</annotation>")
    list_file = tmp_path / "ImageSets/Main/train.txt"
    first, second, _ = faults_of(tmp_path)
    assert first.startswith(f"{list_file}:2: no picture: 'b' has no file in 'JPEGImages'") and ".jpg" in first
    assert second.startswith(f"{tmp_path / 'JPEGImages/c.jpg'}: unreadable picture: ")


def test_a_fault_of_another_split_waits_until_it_is_used(tmp_path: Path) -> None:
    put(tmp_path, "a", thing())
    put(tmp_path, "b", thing(("x", 1, 2, 3)), split="val")
    assert len(read_voc(str(tmp_path), "train")) == 1
    assert "not a number" in faults_of(tmp_path, "val")[0]


def test_pictures_without_annotation(tmp_path: Path) -> None:
    put(tmp_path, "a", thing())
    put(tmp_path, "b").unlink()
    put(tmp_path, "c", split="test").unlink()
    data = read_voc(str(tmp_path), "train")
    assert data.offsets.tolist() == [0, 1, 1] and "1 of 2 pictures have no annotation" in said(data)
    assert str(tmp_path / "JPEGImages/b.jpg") in said(data)
    assert "Not one of the 1 pictures of the split 'test'" in faults_of(tmp_path, "test")[0]
    for file in (tmp_path / "Annotations").iterdir():
        file.write_text("<annotation/>")
    assert "no annotation of any split has an object" in faults_of(tmp_path)[0]


def test_splits_that_are_not_there(tmp_path: Path) -> None:
    put(tmp_path, "a", thing())
    put(tmp_path, "a", thing(), split="val")
    put(tmp_path, "a", thing(), split="cat_train")
    (fault,) = faults_of(tmp_path, "testing")
    assert f"{tmp_path} has no split 'testing'; it has 'train', 'val', 'cat_train'." in fault
    assert str(tmp_path / "ImageSets/Main/testing.txt") in fault
    (tmp_path / "ImageSets/Main/empty.txt").write_text("\n \n")
    assert "the split 'empty' has no pictures" in faults_of(tmp_path, "empty")[0]
    (tmp_path / "ImageSets/Main/odd.txt").write_bytes(b"\xff\xfea")
    assert "odd.txt cannot be read" in faults_of(tmp_path, "train")[0]
    for file in (tmp_path / "ImageSets/Main").iterdir():
        file.unlink()
    assert "found Pascal VOC's folders but no split" in faults_of(tmp_path)[0]


def test_lists_of_one_class_endings_and_odd_names(tmp_path: Path) -> None:
    put(tmp_path, "a b 1", thing())
    put(tmp_path, "ü.v2", thing())
    put(tmp_path, "c", thing())
    (tmp_path / "JPEGImages/c.png").write_bytes((tmp_path / "JPEGImages/c.jpg").read_bytes())
    lists = tmp_path / "ImageSets" / "Main"
    (lists / "cat_train.txt").write_text("\ufeffc -1\r\nü.v2  1\r\n", encoding="utf-8")
    (lists / "other.txt").write_text("a b 1\nc.jpg\nc\nü.v2\n", encoding="utf-8")
    assert stems(read_voc(str(tmp_path), "cat_train")) == ["c", "ü.v2"]
    data = read_voc(str(tmp_path), "other")
    assert stems(data) == ["a b 1", "c", "ü.v2"] and data.paths[1].endswith("c.jpg")
    assert "1 pictures are listed more than once" in said(data)


@pytest.mark.parametrize("between", ["", "VOCdevkit"])
def test_one_year_or_several(tmp_path: Path, between: str) -> None:
    old, new = tmp_path / between / "VOC2007", tmp_path / between / "VOC2012"
    put(new, "b", thing(name="dog"))
    put(new, "c", thing(name="dog"), split="val")
    assert stems(read_voc(str(tmp_path), "train")) == ["b"]
    put(old, "a", thing(name="cat"))
    put(old, "d", thing(name="ape"), split="test")
    data = read_voc(str(tmp_path), "train")
    assert stems(data) == ["a", "b"] and data.class_names == ("ape", "cat", "dog")
    assert data.labels.tolist() == [1, 2] and "VOC2007, VOC2012" in said(data)
    assert stems(read_voc(str(tmp_path), "VOC2012/train")) == ["b"]
    assert stems(read_voc(str(tmp_path), "test")) == ["d"]
    (fault,) = faults_of(tmp_path, "VOC2007/val")
    assert "'VOC2007/test', 'VOC2007/train', 'VOC2012/train', 'VOC2012/val'" in fault


def test_it_is_told_apart_from_darknet(tmp_path: Path) -> None:
    put(tmp_path / "voc", "a", thing())
    assert is_voc(str(tmp_path / "voc")) and is_voc(str(tmp_path))
    (tmp_path / "images" / "train").mkdir(parents=True)
    assert not is_voc(str(tmp_path / "images")) and not is_voc(str(tmp_path / "nowhere"))
    (tmp_path / "voc" / "data.yaml").write_text("train: JPEGImages\nnames: [cat]\n")
    assert not is_voc(str(tmp_path / "voc"))
    (tmp_path / "voc" / "JPEGImages" / "a.txt").write_text("0 .5 .5 .5 .5\n")
    assert not isinstance(
        open_pictures(str(tmp_path / "voc"), "train", images=1, seed=0, size=(64, 64)), VocData
    )


@settings(max_examples=200)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(
            st.sampled_from([*"<>/&; 1x\n", "annotation", "object", "name", "bndbox", "xmin", "size", "<!--",
                             "<![CDATA[", "]]>", "<?xml ", "encoding='", "utf-7", "'?>", "&lt;",
                             "\ud800", "nan"]),
            max_size=40,
        ).map(lambda words: "".join(words).encode("utf-8", "surrogatepass")),
        st.lists(st.tuples(st.sampled_from(["xmin", "ymin", "xmax", "ymax", "name"]), st.text(max_size=9)))
        .map(lambda sides: "".join(f"<{side}>{text}</{side}>" for side, text in sides))
        .map(lambda text: f"<annotation><object><bndbox>{text}</bndbox></object></annotation>"
             .encode("utf-8", "surrogatepass")),
    )
)  # fmt: skip
def test_no_bytes_give_a_traceback(content: bytes) -> None:
    found = parse(content)
    assert found.faults or all(np.isfinite(known.box).all() for known in found.objects)


def test_it_pickles(tmp_path: Path) -> None:
    put(tmp_path, "a", thing())
    data = read_voc(str(tmp_path), "train")
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy.picture(0).boxes, data.picture(0).boxes)


@pytest.mark.skipif("RANKLESS_REAL_DATA" not in os.environ, reason="RANKLESS_REAL_DATA names no folder")
def test_the_blood_cells() -> None:
    """Its README's figures: 4888 boxes; they begin at pixel 1 and end at 640 and 480: counted from 1."""
    root = str(Path(os.environ["RANKLESS_REAL_DATA"]) / "det_bccd")
    whole = [read_voc(root, split) for split in ("trainval", "test")]
    assert [len(data) for data in whole] == [292, 72]
    boxes, labels = (np.concatenate([getattr(d, name) for d in whole]) for name in ("boxes", "labels"))
    assert whole[0].class_names == ("Platelets", "RBC", "WBC")
    assert np.bincount(labels).tolist() == [361, 4155, 372]
    assert boxes.min(0)[:2].tolist() == [0, 0] and boxes.max(0)[2:].tolist() == [640, 480]
    notes = "\n".join(note for data in whole for note in data.notes)
    assert "clipped" not in notes and "pixel 0" not in notes and "left out" not in notes
