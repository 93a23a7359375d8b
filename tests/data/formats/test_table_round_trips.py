"""What COCO JSON, lines and CSV write, they read back: boxes bit for bit, images and classes in order."""

import os
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rankless.data.datasets.open_split import examine
from rankless.data.formats import coco, csv_table, lines
from rankless.data.formats.registry import format_named
from rankless.data.formats.writing import ImageFiles
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.data.index.raw import NO_AREA, RawBuilder
from rankless.data.index.validation import validate
from rankless.errors import UserError, counted

FORMATS = ("coco", "lines", "csv")
SIZES = ((20, 40), (1, 1), (300, 7), (640, 480))
NAMES = ("a.jpg", "b c, 1.jpg", "ü 漢 🐈.PNG", "x,1,2,3,4,5.jpg")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for name, (height, width) in zip(NAMES, SIZES, strict=True):
        Image.new("RGB", (width, height)).save(root / name)
    return root


def inside(side: int) -> st.SearchStrategy[tuple[float, float]]:
    place = st.floats(0, side, width=32) | st.sampled_from([0.0, float(side), float(np.float32(0.1)) * side])
    return st.tuples(place, place).map(sorted).filter(lambda pair: np.float32(pair[0]) < np.float32(pair[1]))


@st.composite
def splits(draw: st.DrawFn, root: str, flags: tuple[int, ...] = (0,), areas: bool = False) -> Annotations:
    classes = draw(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1), min_size=1, unique=True
        )
        | st.just(["cat", "big dog", 'a "quoted", one', "7"])
    )
    order = draw(st.permutations(range(len(NAMES))))[: draw(st.integers(1, 4))]
    made = RawBuilder()
    for number in order:
        height, width = SIZES[number]
        image = made.add_image(f"{root}/{NAMES[number]}", size=SIZES[number])
        for _ in range(draw(st.integers(0, 3))):
            (x1, x2), (y1, y2) = draw(inside(width)), draw(inside(height))
            label, flag = draw(st.integers(0, len(classes) - 1)), draw(st.sampled_from(flags))
            area = (x2 - x1) * (y2 - y1) / 2 if areas else NO_AREA
            made.add_box(image, (x1, y1, x2, y2), label, 1, flag, area)
    return validate(made.raw(names=classes), "")  # without a box that repeats another


def through(format: str, held: Annotations, out: Path) -> tuple[Annotations, list[str]]:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    lost = format_named(format).write(out, {"train": held, "val": held}, ImageFiles())
    assert format_named(format).splits(out) == ["train", "val"]
    val, train = examine(str(out), "val", format), examine(str(out), "train", format)
    assert np.array_equal(val.boxes, train.boxes)
    return train, lost


def check(held: Annotations, found: Annotations, rows: np.ndarray | slice = slice(None)) -> None:
    assert found.class_names == held.class_names
    assert [Path(path).name for path in found.paths()] == [Path(path).name for path in held.paths()]
    assert np.array_equal(found.sizes, held.sizes)
    assert np.array_equal(found.boxes.view(np.uint32), held.boxes[rows].view(np.uint32))
    assert np.array_equal(found.labels, held.labels[rows])
    stopping = {"a pixel thin", "difficult", "crowd", "other size"}
    assert set(found.findings.counts) <= stopping


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@settings(settings.get_profile("files"))
@given(data=st.data())
def test_boxes_come_back_bit_for_bit(folder, format, data):
    held = data.draw(splits(str(folder)))
    found, lost = through(format, held, folder.parent / f"out_{format}")
    assert lost == []
    check(held, found)
    assert np.array_equal(found.offsets, held.offsets)
    assert np.isnan(found.areas).all()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["coco", "csv"])
@settings(settings.get_profile("files"))
@given(data=st.data())
def test_flags_and_areas_come_back(folder, format, data):
    held = data.draw(splits(str(folder), (0, DIFFICULT, CROWD, DIFFICULT | CROWD), areas=True))
    found, lost = through(format, held, folder.parent / f"flags_{format}")
    assert lost == []
    check(held, found)
    assert np.array_equal(found.flags, held.flags)
    assert np.array_equal(found.areas, held.areas)


@pytest.mark.slow
@settings(settings.get_profile("files"))
@given(data=st.data())
def test_lines_tell_what_they_leave_out(folder, data):
    held = data.draw(splits(str(folder), (0, DIFFICULT, CROWD), areas=True))
    found, lost = through("lines", held, folder.parent / "flags_lines")
    check(held, found, held.flags == 0)
    sentences = " ".join(lost)
    for what, count in (
        ("marked difficult", (held.flags == DIFFICULT).sum()),
        ("marked a crowd", (held.flags == CROWD).sum()),
    ):
        assert (f"{counted(count, 'box', 'boxes')} {what}" in sentences) == (count > 0)
    plain = (held.flags == 0).sum()
    assert (f"{counted(plain, 'object loses its', 'objects lose their')} area;" in sentences) == (plain > 0)
    of = [sentence.split(":")[0] for sentence in lost]  # each split once
    assert len(set(lost)) == len(lost) and of.count("train") == of.count("val")


@pytest.mark.parametrize("page", [coco, lines, csv_table])
def test_what_is_written_is_known_again_and_by_no_other(folder, tmp_path, page: ModuleType):
    held = _one_box(folder)
    page.write(tmp_path, {"train": held}, ImageFiles("copy"))
    assert [other for other in (coco, lines, csv_table) if other.recognize(tmp_path)] == [page]


OTHERS = {
    "darknet": {
        "data.yaml": "train: images/train\nnames: [cat]\n",
        "images/train/a.jpg": "",
        "labels/train/a.txt": "0 0.5 0.5 0.1 0.1",
        "train.txt": "images/train/a.jpg\n./images/train/b c.jpg",
        "classes.txt": "cat",
        "results.csv": "epoch,loss\n1,2",
        "notes.json": '{"info": {"images": 3}}',
    },
    "voc": {
        "Annotations/a.xml": "<annotation/>",
        "JPEGImages/a.jpg": "",
        "ImageSets/Main/train.txt": "a\nb 1",
        "train.txt": "a\nb 1",
    },
    "image-folder": {
        "train/cat/a.jpg": "",
        "val/cat/1,2,3.jpg": "",
        "labels.csv": "id,name\n0,cat",
        "readme.txt": "Hi, you, and, you, too.",
    },
    "webdataset": {"train-000000.tar": "", "train.json": '{"shards": 1}', "index.csv": "shard,count"},
    "labelme": {"a.jpg": "", "a.json": '{"shapes": [{"label": "cat"}], "imagePath": "a.jpg"}'},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_data_is_not_taken_for_these(tmp_path, name):
    for file, text in OTHERS[name].items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    for page in (coco, lines, csv_table):
        assert page.recognize(tmp_path) == ""
        for file in OTHERS[name]:
            if not file.endswith(
                ".json"
            ):  # which is COCO's if it is given by name, and then rejected with the reason
                assert page.recognize(tmp_path / file) == ""


def _one_box(folder: Path) -> Annotations:
    (folder.parent / "one.csv").write_text(
        f"filename,xmin,ymin,xmax,ymax,class\n{folder}/a.jpg,1,2,3,4,cat\n"
    )
    return examine(str(folder.parent / "one.csv"), "train", "csv")


def test_classes_of_images(folder, tmp_path):
    (folder.parent / "some.csv").write_text(
        f"filename,label\n{folder}/x,cat\n{folder}/a.jpg,dog\n{folder}/{NAMES[2]},cat\n"
    )
    held = examine(str(folder.parent / "some.csv"), "train", "csv")
    csv_table.write(tmp_path, {"test": held}, ImageFiles())
    found = examine(str(tmp_path), "test", "csv")
    assert not found.has_boxes
    assert found.labels.tolist() == [1, 0]
    assert found.class_names == ("cat", "dog")
    for page in (coco, lines):
        with pytest.raises(UserError, match="but the images have none"):
            page.write(tmp_path / page.TITLE, {"test": held}, ImageFiles())


@pytest.mark.parametrize("format", FORMATS)
def test_names_that_are_no_text(tmp_path, format):
    image = tmp_path / os.fsdecode(b"caf\xe9 \\.jpg")
    Image.new("RGB", (40, 20)).save(image)
    (tmp_path / "some.csv").write_bytes(b"filename,x1,y1,x2,y2,class\ncaf\xe9 \\.jpg,1,2,3,4,cat\n")
    held = examine(str(tmp_path / "some.csv"), "train", "csv")
    assert held.path(0) == str(image)
    found, _ = through(format, held, tmp_path / "out")
    assert found.boxes.tolist() == [[1, 2, 3, 4]]
    assert Path(found.path(0)).read_bytes() == Path(image).read_bytes()


def test_class_names_that_do_not_fit_are_reported(folder, tmp_path):
    held = _one_box(folder)
    object.__setattr__(held, "class_names", ("cat ", "cat", "two\nlines"))
    for page in (lines, csv_table):
        (tmp_path / page.TITLE).mkdir()
        (reported,) = page.write(tmp_path / page.TITLE, {"train": held}, ImageFiles())
        assert "class names were changed to fit on one line, such as 'cat '" in reported
    assert examine(str(tmp_path / "CSV"), "train", "csv").class_names == ("cat", "cat (1)", "two_lines")
