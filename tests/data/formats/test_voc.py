"""Pascal VOC: pixels counted from 1, every layout, and an outcome for everything that can be wrong."""

import contextlib
import shutil
import tracemalloc
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rankless.data.datasets.annotated import BoxedImages
from rankless.data.datasets.detection import DetectionExamples, collate, open_images
from rankless.data.datasets.open_split import examine, open_annotations
from rankless.data.formats.registry import recognize as recognized
from rankless.data.formats.voc import read, recognize, splits
from rankless.data.formats.voc_xml import parse
from rankless.data.index.annotations import DIFFICULT, Annotations
from rankless.errors import UserError
from rankless.recipe.schema import Data


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
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 20)).save(root / "JPEGImages" / f"{name}.jpg")
    file = root / "Annotations" / f"{name}.xml"
    file.write_text(f"<annotation>{size}{''.join(things)}</annotation>", encoding="utf-8")
    with (root / "ImageSets" / "Main" / f"{split}.txt").open("a", encoding="utf-8") as lists:
        lists.write(f"{name}\n")
    return file


def problems_of(root: Path, split: str = "train") -> tuple[str, ...]:
    with pytest.raises(UserError) as caught:
        open_annotations(str(root), split)
    return caught.value.problems


def stems(data: Annotations) -> list[str]:
    return [Path(path).stem for path in data.paths()]


def counts(data: Annotations) -> dict[str, int]:
    return data.findings.counts


def test_pixels_count_from_one_and_the_last_is_inside(tmp_path: Path) -> None:
    put(tmp_path, "b", thing((1, 1, 40, 20), "dog"), thing((7, 3, 7, 4)), thing(("2.5", "2.0", 9.25, 4)))
    put(tmp_path, "a")
    found = open_annotations(str(tmp_path), "train")
    assert stems(found) == ["b", "a"] and found.class_names == ("cat", "dog")  # images in the list's order
    data = BoxedImages(found)
    first = data.read(0)
    assert first.boxes.tolist() == [[0, 0, 40, 20], [6, 2, 7, 4], [1.5, 1, 9.25, 4]]
    assert first.labels.tolist() == [1, 0, 0] and first.labels.dtype == torch.int64
    assert first.boxes.dtype == torch.float32 and first.image.shape == (3, 20, 40)
    assert data.read(1).boxes.shape == (0, 4) and found.offsets.tolist() == [0, 3, 3]
    assert data.source(1) == found.path(1)
    assert counts(found) == {"empty": 1, "a pixel thin": 1}
    assert data.notes[0].startswith(f"{tmp_path}: read as Pascal VOC because it has 'Annotations'")


def test_every_split_numbers_the_classes_alike(tmp_path: Path) -> None:
    put(tmp_path, "a", thing(name="zebra"))
    put(tmp_path, "b", thing(name="ant"), split="val")
    put(tmp_path, "c", thing(name="newt"), split="test")
    (tmp_path / "Annotations" / "stray.xml").write_text(f"<annotation>{thing(name='no')}</annotation>")
    for split, label in (("train", 2), ("val", 0), ("test", 1)):
        data = open_annotations(str(tmp_path), split)
        assert data.class_names == ("ant", "newt", "zebra") and data.labels.tolist() == [label]


def test_difficult_objects_are_no_targets_but_are_known(tmp_path: Path) -> None:
    hard = [f"<difficult>{flag}</difficult>" for flag in ("1", " 0 ", "", "Unspecified", "True")]
    put(tmp_path, "a", *(thing((1 + n, 1, 20, 20), extra=flag) for n, flag in enumerate(hard)))
    data = open_images(Data(root=str(tmp_path)), "train", 1)
    assert isinstance(data, BoxedImages)
    assert data.annotations.flags.tolist() == [DIFFICULT, 0, 0, 0, DIFFICULT]
    examples = DetectionExamples(data, (20, 40), 0, None)
    batch = collate([examples.item(0, 0)])
    assert batch.boxes[batch.valid][:, 0].tolist() == [1, 2, 3]
    assert batch.ignored is not None and batch.ignored[0, :, 0].tolist() == [0, 4]
    truth = examples.ground_truth(0)
    assert truth.boxes[:, 0].tolist() == [0, 1, 2, 3, 4] and (truth.height, truth.width) == (20, 40)
    assert truth.difficult is not None and truth.difficult.tolist() == [True, False, False, False, True]
    assert counts(data.annotations) == {"difficult": 2}


def test_pixels_before_the_first_are_counted_apart_from_other_edges(tmp_path: Path) -> None:
    boxes = [(-3, -3, 60, 30), (0, 4, 9, 9), (6, 6, 6, 6), (1, -9, 5, 0)]
    put(tmp_path, "a", *map(thing, boxes))
    data = open_annotations(str(tmp_path), "train")
    assert data.boxes.tolist() == [[0, 0, 40, 20], [0, 3, 9, 9], [5, 5, 6, 6]]
    assert counts(data) == {"outside": 1, "over the edge": 1, "counted from 0": 1, "a pixel thin": 1}
    assert data.findings.first["outside"][0].where == f"{tmp_path / 'Annotations/a.xml'}: object 4"


def test_a_wrong_size_is_reported_and_the_image_counts(tmp_path: Path) -> None:
    put(tmp_path, "a", thing((1, 1, 40, 20)), size=SIZE.replace("40", "400"))
    put(tmp_path, "b", size="")
    put(tmp_path, "c", size="<size><width>x</width><height>20</height></size>")
    put(tmp_path, "d", size="<size><width>20</width><height>40</height></size>")
    put(tmp_path, "e", size="<size><width>1e300</width><height>0</height></size>")
    data = open_annotations(str(tmp_path), "train")
    assert data.boxes.tolist() == [[0, 0, 40, 20]] and data.sizes.tolist() == [[20, 40]] * 5
    assert counts(data) == {"other size": 2, "no stated size": 2, "empty": 4}
    first, second = map(str, data.findings.first["other size"])
    assert first.endswith("a.jpg: 40 × 20, annotated as 400 × 20") and second.endswith("20 × 40")
    expected = [f"{tmp_path}/Annotations/{x}.xml: {tmp_path}/JPEGImages/{x}.jpg is 40 × 20" for x in "ce"]
    assert [str(one) for one in data.findings.first["no stated size"]] == expected


def test_a_image_turned_by_exif_and_annotated_as_stored_is_reported(tmp_path: Path) -> None:
    put(tmp_path, "a", thing((1, 1, 15, 20)))
    put(tmp_path, "b", thing((1, 1, 15, 20)), size="<size><width>20</width><height>40</height></size>")
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in "ab":
        Image.new("RGB", (40, 20)).save(tmp_path / f"JPEGImages/{name}.jpg", exif=exif)
    data = open_annotations(str(tmp_path), "train")
    assert data.sizes.tolist() == [[40, 20]] * 2 and counts(data) == {"sideways": 1}
    assert "a.jpg: 20 × 40, annotated as 40 × 20" in str(data.findings.first["sideways"][0])


def test_parts_of_an_object_are_not_its_box(tmp_path: Path) -> None:
    part = f"<part><name>head</name>{thing((1, 1, 2, 2))[8 + 16 : -9]}</part>"
    file = put(
        tmp_path,
        "a",
        f"<object>{part}<bndbox><ymax>9</ymax><xmax>8</xmax><ymin>2</ymin>"
        "<xmin>3</xmin></bndbox><name> cat\n</name></object>",
    )
    assert "head" in file.read_text()
    data = open_annotations(str(tmp_path), "train")
    assert data.class_names == ("cat",) and data.boxes.tolist() == [[2, 1, 8, 9]]


@pytest.mark.parametrize(
    ("inside", "problem"),
    [
        (thing(name=""), "not understood: object 2 has no <name>"),
        (thing(("x", 1, 2, 3)), "not a number: object 2 ('cat'): <xmin> is 'x'; expected a number of pixels"),
        (thing((1, "1_0", 2, 3)), "not a number: object 2 ('cat'): <ymin> is '1_0'"),
        (thing("<xmin>1</xmin><ymin/><xmax>3</xmax><ymax>3</ymax>"), "object 2 ('cat') has no <ymin>"),
        ("<object><name>cat</name></object>", "not understood: object 2 ('cat') has no <bndbox>"),
        (thing(extra=thing((1, 1, 2, 2))[8 + 16 : -9]), "object 2 ('cat') has 2 <bndbox> elements"),
        (thing(extra="<difficult>7</difficult>"), "object 2 ('cat'): <difficult> is '7'; expected 0 or 1"),
        ("<object><name>cat</name><robndbox><cx>5</cx></robndbox></object>", "<robndbox>"),
        ("<object><name>cat</name><polygon><x1>5</x1></polygon></object>", "an invalid <polygon>"),
    ],
)  # fmt: skip
def test_what_stops_names_file_and_object(tmp_path: Path, inside: str, problem: str) -> None:
    file = put(tmp_path, "a", thing(), inside)
    (reported, last) = problems_of(tmp_path)
    assert reported.startswith(f"{file}: ") and problem in reported
    assert "rankless data check" in last
    assert examine(str(tmp_path), "train").boxes.tolist() == [[2, 4, 12, 10]]


def test_a_polygon_without_a_box_becomes_its_bounds(tmp_path: Path) -> None:
    corners = "<polygon><x1>3</x1><y1>5</y1><x2>12</x2><y2>6</y2><x3>9</x3><y3>10</y3></polygon>"
    points = (
        "<polygon><pt><x>3</x><y>5</y></pt><pt><x>12</x><y>6</y></pt><pt><x>9</x><y>10</y></pt></polygon>"
    )
    put(
        tmp_path,
        "a",
        f"<object><name>cat</name>{corners}</object>",
        f"<object><name>dog</name>{points}</object>",
        thing((3, 5, 12, 9), "ape", extra=corners),
        f"<object><name>cat</name>{corners.replace('>12<', '>nan<')}</object>",
    )
    data = open_annotations(str(tmp_path), "train")
    assert data.boxes.tolist() == [[2, 4, 12, 10]] * 2 + [[2, 4, 12, 9]]
    assert counts(data) == {"outline": 3, "not finite": 1}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"<annotation>", "unreadable file: not XML: no element found"),
        (b"", "unreadable file: not XML"),
        (b"\xff\xfe<\0a\0", "unreadable file: found a document"),
        (b'<?xml version="1.0" encoding="no-such"?><annotation/>', "unreadable file: not XML"),
        (f"<annotation>{thing(name='猫狗')}</annotation>".encode("gbk"), "unreadable file: not UTF-8 text"),
        (b'<?xml version="1.0" encoding="big5"?>\xff>', "unreadable file: not BIG5 text"),
        (b"<html/>", "not understood: the root element is <html>"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', "unreadable file: found a document"),
    ],
)
def test_what_is_no_annotation(tmp_path: Path, content: bytes, problem: str) -> None:
    put(tmp_path, "a", thing())
    put(tmp_path, "b", split="val").write_bytes(content)
    for split in ("train", "val"):  # another split's names would be unknown
        (reported, _) = problems_of(tmp_path, split)
        assert f"b.xml: {problem}" in reported


@pytest.mark.parametrize(("encoding", "name"), [("GBK", "猫"), ("big5", "貓")])
def test_the_declared_encoding_is_read(tmp_path: Path, encoding: str, name: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?><annotation>{thing(name=name)}</annotation>'
    put(tmp_path, "a").write_bytes(text.encode(encoding))
    assert open_annotations(str(tmp_path), "train").class_names == (name,)


LAUGHS = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
BODY = "<object><name>{}</name><bndbox/></object></annotation>"
HOSTILE = {
    "billion laughs": f'<!DOCTYPE a [<!ENTITY e0 "ha">{LAUGHS}]><annotation>{BODY.format("&e9;")}',
    "quadratic": f'<!DOCTYPE a [<!ENTITY e "{"x" * 50_000}">]><annotation>{BODY.format("&e;" * 20_000)}',
    "external": f'<!DOCTYPE a [<!ENTITY e SYSTEM "file://SECRET">]><annotation>{BODY.format("&e;")}',
    "parameter": f'<!DOCTYPE a [<!ENTITY % e SYSTEM "file://SECRET"> %e;]><annotation>{BODY.format("cat")}',
    "external subset": f'<!DOCTYPE a SYSTEM "file://SECRET"><annotation>{BODY.format("cat")}',
    "inclusion": '<annotation xmlns:x="http://www.w3.org/2001/XInclude"><object><name>'
    '<x:include href="file://SECRET" parse="text"/></name></object></annotation>',
}
ENCODINGS = (
    "utf-8", "utf-8-sig", "iso-8859-1", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-7", "cp037", "gbk",
    "shift_jis",
)  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_entities_are_neither_expanded_nor_fetched(tmp_path: Path, kind: str, encoding: str) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("kept to themselves")
    text = HOSTILE[kind].replace("SECRET", str(secret))
    for declared in ("", f'<?xml version="1.0" encoding="{encoding}"?>'):
        for content in ((declared + text).encode(encoding), declared.encode() + text.encode(encoding)):
            tracemalloc.start()
            try:
                found = parse(content)
                most = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert found.problems and not [one for one in found.objects if one.name not in ("", "cat")]
            assert not any("themselves" in sentence for _, sentence in found.problems)
            assert most < 20_000_000


def test_what_stops_comes_at_once_and_what_does_not_is_counted(tmp_path: Path) -> None:
    put(tmp_path, "a", *[thing((1, 1, "x", "y"))] * 12, thing(name=""))
    put(tmp_path, "b")
    (tmp_path / "JPEGImages" / "b.jpg").unlink()
    put(tmp_path, "c", thing())
    (tmp_path / "JPEGImages" / "c.jpg").write_bytes(b"no image")
    faults = problems_of(tmp_path)
    assert "… and 14 more: not a number" in faults and "object 13 has no <name>" in faults[0]
    (tmp_path / "Annotations/a.xml").write_text(f"<annotation>{thing()}</annotation>")
    data = open_annotations(str(tmp_path), "train", max_bad=0.5)
    assert stems(data) == ["a", "c"] and data.offsets.tolist() == [0, 1, 1]
    assert counts(data) == {"no image": 1, "unreadable image": 1}
    missing = str(data.findings.first["no image"][0])
    assert missing.startswith(f"{tmp_path / 'ImageSets/Main/train.txt'}:2: 'b' has no file in 'JPEGImages'")
    assert data.findings.first["unreadable image"][0].where == str(tmp_path / "JPEGImages/c.jpg")
    with pytest.raises(UserError, match=r"1 of the 2 images .* data.max_bad .* 0.4"):
        open_annotations(str(tmp_path), "train", max_bad=0.4)


def test_an_error_of_another_split_waits_until_it_is_used(tmp_path: Path) -> None:
    put(tmp_path, "a", thing())
    put(tmp_path, "b", thing(("x", 1, 2, 3)), split="val")
    assert len(open_annotations(str(tmp_path), "train")) == 1
    assert "not a number" in problems_of(tmp_path, "val")[0]


def test_images_without_annotation_and_the_reverse(tmp_path: Path) -> None:
    put(tmp_path, "a", thing())
    put(tmp_path, "b").unlink()
    put(tmp_path, "c", split="test").unlink()
    (tmp_path / "Annotations" / "stray.xml").write_text("<annotation/>")
    data = open_annotations(str(tmp_path), "train")
    assert data.offsets.tolist() == [0, 1, 1]
    assert counts(data) == {"no label file": 1, "label without image": 1}
    assert data.findings.first["no label file"][0].where == str(tmp_path / "JPEGImages/b.jpg")
    assert data.findings.first["label without image"][0].where == str(tmp_path / "Annotations/stray.xml")
    assert "the images of the split 'test'" in problems_of(tmp_path, "test")[0]
    for file in (tmp_path / "Annotations").iterdir():
        file.write_text("<annotation/>")
    assert "no objects found in any split" in problems_of(tmp_path)[0]


def test_splits_that_are_not_there(tmp_path: Path) -> None:
    put(tmp_path, "a", thing())
    put(tmp_path, "a", thing(), split="val")
    put(tmp_path, "a", thing(), split="cat_train")
    (problem,) = problems_of(tmp_path, "other")
    assert f"{tmp_path}: no split 'other'; expected one of 'train', 'val'; choose" in problem
    assert str(tmp_path / "ImageSets/Main/other.txt") in problem
    put(tmp_path, "a", thing(), split="trainval")
    put(tmp_path, "a", thing(), split="test")
    assert splits(tmp_path) == ["train", "val", "test"]
    assert len(open_annotations(str(tmp_path), "cat_train")) == 1  # what is not offered can still be had
    (tmp_path / "ImageSets/Main/empty.txt").write_text("\n \n")
    assert "the split 'empty' has no images" in problems_of(tmp_path, "empty")[0]
    (tmp_path / "ImageSets/Main/odd.txt").write_bytes(b"\xff\xfea")
    assert "odd.txt: cannot be read" in problems_of(tmp_path, "train")[0]


def test_without_lists_all_images_are_one_split(tmp_path: Path) -> None:
    for name in "ba":
        put(tmp_path, name, thing())
    shutil.rmtree(tmp_path / "ImageSets")
    put(tmp_path / "beside", "c")  # makes an annotation without an image
    shutil.copy(tmp_path / "beside/Annotations/c.xml", tmp_path / "Annotations")
    for samples, annotations in (("JPEGImages", "Annotations"), ("images", "annotations")):
        if not (tmp_path / samples).exists():
            (tmp_path / "JPEGImages").rename(tmp_path / samples)
            (tmp_path / "Annotations").rename(tmp_path / annotations)
        data = open_annotations(str(tmp_path), "train")
        assert splits(tmp_path) == ["train"] and stems(data) == ["a", "b"]
        assert counts(data) == {"label without image": 1} and "all images are 'train'" in data.notes[1]
        assert "no split 'val'; expected 'train'; choose" in problems_of(tmp_path, "val")[0]


def test_annotations_beside_their_images(tmp_path: Path) -> None:
    for split, name, things in (("train", "a", [thing(name="cat")]), ("valid", "b", [thing(name="dog")])):
        source = tmp_path / "source"
        annotation = put(source, name, *things)
        (tmp_path / "set" / split).mkdir(parents=True)
        for file in (annotation, source / "JPEGImages" / f"{name}.jpg"):
            shutil.copy(file, tmp_path / "set" / split)
    root = tmp_path / "set"
    assert splits(root) == ["train", "valid"] and "next to" in recognize(root)
    data = open_annotations(str(root), "val")
    assert stems(data) == ["b"] and data.class_names == ("cat", "dog") and data.labels.tolist() == [1]
    assert counts(data) == {}
    data = open_annotations(str(root / "train"), "train")
    assert stems(data) == ["a"] and "all images are 'train'" in data.notes[1]


def test_lists_of_one_class_endings_and_odd_names(tmp_path: Path) -> None:
    put(tmp_path, "a b 1", thing())
    put(tmp_path, "ü.v2", thing())
    put(tmp_path, "c", thing())
    (tmp_path / "JPEGImages/c.png").write_bytes((tmp_path / "JPEGImages/c.jpg").read_bytes())
    lists = tmp_path / "ImageSets" / "Main"
    (lists / "cat_train.txt").write_text("\ufeffc -1\r\nü.v2  1\r\n", encoding="utf-8")
    (lists / "other.txt").write_text("a b 1\nc.jpg\nc\nü.v2\n", encoding="utf-8")
    assert stems(open_annotations(str(tmp_path), "cat_train")) == ["c", "ü.v2"]
    data = open_annotations(str(tmp_path), "other")
    assert stems(data) == ["a b 1", "c", "ü.v2"] and data.path(1).endswith("c.jpg")
    assert counts(data) == {"listed twice": 1}
    listed = unicodedata.normalize("NFD", "ü.v2").encode() + b"\n"
    (lists / "odd.txt").write_bytes(listed)
    file = tmp_path / "Annotations" / "ü.v2.xml"
    file.rename(file.with_suffix(".XML"))
    assert len(open_annotations(str(tmp_path), "odd").boxes) == 1


@pytest.mark.parametrize("between", ["", "VOCdevkit"])
def test_one_year_or_several(tmp_path: Path, between: str) -> None:
    old, new = tmp_path / between / "VOC2007", tmp_path / between / "VOC2012"
    put(new, "b", thing(name="dog"))
    put(new, "c", thing(name="dog"), split="val")
    assert stems(open_annotations(str(tmp_path), "train")) == ["b"]
    put(old, "a", thing(name="cat"))
    put(old, "d", thing(name="ape"), split="test")
    data = open_annotations(str(tmp_path), "train")
    assert stems(data) == ["a", "b"] and data.class_names == ("ape", "cat", "dog")
    assert data.labels.tolist() == [1, 2] and "VOC2007, VOC2012" in data.notes[1]
    assert stems(open_annotations(str(tmp_path), "VOC2012/train")) == ["b"]
    assert stems(open_annotations(str(tmp_path), "test")) == ["d"]
    (problem,) = problems_of(tmp_path, "VOC2007/val")
    assert "'VOC2007/test', 'VOC2007/train', 'VOC2012/train', 'VOC2012/val'" in problem
    assert splits(tmp_path) == ["train", "val", "test"]


def test_it_is_reported_apart_from_others(tmp_path: Path) -> None:
    put(tmp_path / "voc", "a", thing())
    assert recognize(tmp_path / "voc") and recognize(tmp_path)
    (tmp_path / "images" / "train").mkdir(parents=True)
    (tmp_path / "coco" / "images").mkdir(parents=True)
    (tmp_path / "coco" / "annotations").mkdir(parents=True)
    (tmp_path / "coco" / "annotations" / "train.json").touch()
    for name in ("images", "nowhere", "coco"):
        assert not recognize(tmp_path / name)
    (tmp_path / "voc" / "data.yaml").write_text("train: JPEGImages\nnames: [cat]\n")
    (tmp_path / "voc" / "JPEGImages" / "a.txt").write_text("0 .5 .5 .5 .5\n")
    assert recognized(str(tmp_path / "voc")) == ("darknet", "it has 'data.yaml'")


def test_every_file_that_was_read_is_listed(tmp_path: Path) -> None:
    put(tmp_path, "a", thing())
    put(tmp_path, "b", thing(), split="val")
    found = set(read(tmp_path, "train").depends)
    assert str(tmp_path) in found
    for name in ("ImageSets/Main", "Annotations", "Annotations/a.xml", "Annotations/b.xml", "JPEGImages",
                 "ImageSets/Main/train.txt", "ImageSets/Main/val.txt"):  # fmt: skip
        assert str(tmp_path / name) in found


@settings(settings.get_profile("files"))
@given(st.integers(0, 400), st.binary(max_size=5), st.integers(0, 5))
def test_no_damaged_annotation_gives_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, start: int, inserted: bytes, cut: int
) -> None:
    root = tmp_path_factory.getbasetemp() / "damaged"
    shutil.rmtree(root, ignore_errors=True)
    file = put(root, "a", thing(), thing((1, 1, 4, 4), extra="<difficult>1</difficult>"))
    content = file.read_bytes()
    file.write_bytes(content[:start] + inserted + content[start + cut :])
    with contextlib.suppress(UserError):
        data = examine(str(root), "train")
        assert np.isfinite(data.boxes).all() and (data.boxes[:, 2:] > data.boxes[:, :2]).all()


def test_names_that_are_spelled_differently(tmp_path: Path) -> None:
    """XML files under the encoded name or in another case; those of other images are not taken."""
    for at, name in enumerate(("my photo", "IMG_1", "c", "C"), 1):
        put(tmp_path, name, thing((at, 1, 9, 9)))
    for name, other in (("my photo", "my%20photo"), ("IMG_1", "img_1")):
        (tmp_path / f"Annotations/{name}.xml").rename(tmp_path / f"Annotations/{other}.xml")
    (tmp_path / "Annotations/C.xml").unlink()
    data = open_annotations(str(tmp_path), "train")
    assert stems(data) == ["my photo", "IMG_1", "c", "C"] and counts(data) == {"no label file": 1}
    assert data.boxes[:, 0].tolist() == [0, 1, 2] and "2 files were found under another" in data.about[1]
    (tmp_path / "ImageSets/Main/train.txt").write_text("my%20photo\nMY PHOTO\n")
    assert "shared file: 'MY PHOTO' refers to" in problems_of(tmp_path)[0]
