"""Written data is read back bit for bit, other programs can read it, and losses are reported."""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rankless.curation.data_set import open_data_set
from rankless.data.datasets.open_split import examine, open_annotations
from rankless.data.formats import coco, csv_table, darknet, lines, voc
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


def inside(side: int, coarse: bool) -> st.SearchStrategy[tuple[float, float]]:
    """Two edges; below 1e-5 pixels, Darknet's center and size cannot hold an edge."""
    least = 2**-13 if coarse else 0
    share = st.floats(least, 1, width=32) | st.sampled_from([0.0, 1.0, 1 / 3, 0.1, 0.7])
    place = share.map(lambda share: float(np.float32(share * side)))
    pairs = st.tuples(place, place).map(sorted)
    return pairs.map(lambda pair: tuple(pair) if pair[0] < pair[1] else (0.0, float(side)))


@st.composite
def splits(
    draw: st.DrawFn, root: str, flags: tuple[int, ...] = (0,), areas: bool = False, coarse: bool = False
) -> Annotations:
    """With ``coarse``, what Pascal VOC and Darknet can hold: every class has a box."""
    classes = draw(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1), min_size=1, unique=True
        )
        | st.just(["cat", "big dog", 'a "quoted", one', "7"])
        if not coarse
        else st.just(["ape", "cat", "über dog"])
    )
    order = draw(st.permutations(range(len(NAMES))))[: draw(st.integers(1, 4))]
    made = RawBuilder()
    for number in order:
        height, width = SIZES[number]
        image = made.add_image(f"{root}/{NAMES[number]}", size=SIZES[number])
        for _ in range(draw(st.integers(0, 3))):
            (x1, x2), (y1, y2) = draw(inside(width, coarse)), draw(inside(height, coarse))
            label, flag = draw(st.integers(0, len(classes) - 1)), draw(st.sampled_from(flags))
            area = (x2 - x1) * (y2 - y1) / 2 if areas else NO_AREA
            made.add_box(image, (x1, y1, x2, y2), label, 1, flag, area)
    for label in range(3 * coarse):
        made.add_box(image, (0, 0, width, height), label, 1)
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
    names, expected = ([Path(path).name.lower() for path in each.paths()] for each in (found, held))
    assert names == expected
    assert np.array_equal(found.sizes, held.sizes)
    assert np.array_equal(found.boxes.view(np.uint32), held.boxes[rows].view(np.uint32))
    assert np.array_equal(found.labels, held.labels[rows])
    assert set(found.findings.counts) <= {"a pixel thin", "difficult", "crowd", "other size", "empty"}


@pytest.mark.slow
@pytest.mark.parametrize("format", [*FORMATS, "webdataset", "voc", "darknet"])
@settings(settings.get_profile("files"))
@given(data=st.data())
def test_boxes_come_back_bit_for_bit(folder, format, data):
    held = data.draw(splits(str(folder), coarse=format in ("voc", "darknet")))
    found, lost = through(format, held, folder.parent / f"out_{format}")
    assert lost == []
    check(held, found)
    assert np.array_equal(found.offsets, held.offsets)
    assert np.isnan(found.areas).all()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["coco", "csv", "webdataset"])
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


SIDES = np.array([(1, 1), (20, 40), (77, 31)])  # height, width of the images that tests annotate


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("images")
    for number, (height, width) in enumerate(SIDES.tolist()):
        Image.new("RGB", (width, height)).save(folder / f"{number}.png")
    return [str(folder / f"{number}.png") for number in range(len(SIDES))]


def made(
    paths: list[str],
    boxes: list[list[tuple[float, ...]]],
    labels: list[list[int]],
    sizes: np.ndarray = SIDES,
    flags: Iterable[int] = (),
    areas: Iterable[float] = (),
    class_names: tuple[str, ...] = ("ape", "cat", "über dog"),
) -> Annotations:
    builder, flags, areas = RawBuilder(), iter(flags), iter(areas)
    for path, size, rows, kinds in zip(paths, sizes.tolist(), boxes, labels, strict=False):
        image = builder.add_image(path, size=tuple(size))
        for box, label in zip(rows, kinds, strict=True):
            builder.add_box(image, box, label, 1, next(flags, 0), next(areas, NO_AREA))
    return validate(builder.raw(names=class_names), "made")


def written(page, out: Path, splits: Mapping[str, Annotations]) -> list[str]:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return page.write(out, splits, ImageFiles("link"))


def test_a_label_file_as_others_read_it(tmp_path: Path, images: list[str]) -> None:
    data = made(images, [[], [(0, 0, 40, 20), (10, 5, 20, 10)], []], [[], [2, 0], []])
    written(darknet, tmp_path / "out", {"train": data, "val": data})
    assert (tmp_path / "out/labels/train/1.txt").read_text() == "2 0.5 0.5 1 1\n0 0.375 0.375 0.25 0.25\n"
    assert (tmp_path / "out/labels/val/0.txt").read_text() == ""
    description = yaml.safe_load((tmp_path / "out/data.yaml").read_text(encoding="utf-8"))
    names = ["ape", "cat", "über dog"]
    assert description == {"train": "images/train", "val": "images/val", "names": names}
    assert (tmp_path / "out/images/train/2.png").read_bytes() == Path(images[2]).read_bytes()


@pytest.mark.parametrize(
    ("names", "val", "notes"),
    [
        (["train", "val", "test"], "images/val", 0),
        (["train", "test"], "images/test", 1),
        (["training", "valid", "test"], "images/valid", 0),
        (["train"], None, 0),
    ],
)
def test_a_description_has_the_splits_that_ultralytics_requires(
    tmp_path: Path, images: list[str], names: list[str], val: str | None, notes: int
) -> None:
    """Its check_det_dataset refuses a data.yaml without 'train' and 'val'."""
    data = made(images, [[], [(0, 0, 40, 20)], []], [[], [2], []])
    said = written(darknet, tmp_path / "out", dict.fromkeys(names, data))
    text = (tmp_path / "out/data.yaml").read_text()
    description = yaml.safe_load(text)
    assert (description["train"], description.get("val")) == (f"images/{names[0]}", val)
    assert len(said) == notes == text.count("# val: the images of 'test'")
    assert open_data_set(str(tmp_path / "out")).splits.keys() == set(names)  # none of them twice


def test_darknet_keeps_the_order_and_says_what_it_loses(tmp_path: Path, images: list[str]) -> None:
    boxes = [(0, 0, 8, 8), (1, 1, 9, 9), (2, 2, 8, 8), (1e-30, 0, 8, 8)]
    data = made(
        [images[2], images[1]],
        [boxes, []],
        [[0, 1, 2, 1], []],
        SIDES[[2, 1]],
        flags=[0, DIFFICULT, CROWD, 0],
        areas=[5, NO_AREA, 7, NO_AREA],
    )
    lost = "\n".join(written(darknet, tmp_path / "out", {"a/b": data}))
    for said in (
        "1 box marked difficult",
        "1 box marked a crowd",
        "1 box starts within",
        "1 object loses its area",
    ):
        assert said in lost
    back = open_annotations(str(tmp_path / "out"), "a_b")
    assert [Path(path).name for path in back.paths()] == ["2.png", "1.png"]
    assert back.labels.tolist() == [0, 1] and back.boxes[1].tolist() == [0, 0, 8, 8]


def test_voc_says_what_it_loses(tmp_path: Path, images: list[str]) -> None:
    data = made(
        images[:2],
        [[], [(0, 0, 8, 8), (1, 1, 9, 9), (1e-30, 0, 8, 8)]],
        [[], [2, 1, 1]],
        flags=[CROWD, DIFFICULT, 0],
        areas=[5],
        class_names=("x", "b", "a"),
    )
    lost = "\n".join(written(voc, tmp_path / "out", {"train": data}))
    for said in (
        "1 box marked a crowd",
        "1 object loses its area",
        "1 box starts within",
        "only classes with boxes",
        "'x'",
        "sorts",
    ):
        assert said in lost
    back = open_annotations(str(tmp_path / "out"), "train")
    assert back.class_names == ("a", "b") and back.labels.tolist() == [0, 1, 1]
    assert back.flags.tolist() == [DIFFICULT, DIFFICULT, 0]


def test_voc_writes_a_image_of_several_splits_once(tmp_path: Path, images: list[str]) -> None:
    drawn: tuple[list, list] = [[], [(0, 0, 8, 8)], []], [[], [1], []]
    data, other = made(images, *drawn), made(images, drawn[0], [[], [2], []])
    written(voc, tmp_path / "out", {"train": data, "val": data, "test": other})
    out = tmp_path / "out"
    again = f"{Path(images[1]).parent.name}_1.png"  # its boxes are others
    assert {file.name for file in (out / "JPEGImages").iterdir()} == {"0.png", "1.png", "2.png", again}
    for split in ("train", "val", "test"):
        assert len(open_annotations(str(out), split)) == 3
    assert open_annotations(str(out), "test").labels.tolist() == [1]  # of 'cat' and 'über dog'


def test_names_of_images_differ_without_their_endings(tmp_path: Path) -> None:
    alike = ["a/x.jpg", "b/x.png", "b/X.jpg", "b/é.jpg", "c/e\u0301.jpg"]
    names = [*alike, "c/ .hidden.jpg", "c/line\nbreak.jpg", "c/a 1.jpg"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (40, 20)).save(tmp_path / name)
    paths = [str(tmp_path / name) for name in names]
    boxes = [[(number, 0, 40, 20)] for number in range(len(names))]
    sizes = np.array([[20, 40]] * len(names))
    data = made(paths, boxes, [[0]] * len(names), sizes, class_names=("ape",))
    for page, name in ((darknet, "darknet"), (voc, "voc")):
        written(page, tmp_path / name, {"train": data})
        back = open_annotations(str(tmp_path / name), "train")
        assert back.boxes[:, 0].tolist() == list(range(len(names))) and back.findings.counts == {}


@pytest.mark.parametrize("names", [("a", "a "), ("a\x01", "b"), ("\ud800", "b")])
def test_class_names_that_voc_cannot_hold(tmp_path: Path, images: list[str], names: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="cannot be written as Pascal VOC"):
        voc.write(tmp_path, {"train": made(images[:1], [[]], [[]], class_names=names)}, ImageFiles())


def test_splits_that_number_classes_differently(tmp_path: Path, images: list[str]) -> None:
    one, two = (made(images[:1], [[]], [[]], class_names=names) for names in (("a", "b"), ("b", "a")))
    for page in (darknet, voc):
        with pytest.raises(UserError, match="'train' and 'val' have different class names"):
            written(page, tmp_path / "out", {"train": one, "val": two})
