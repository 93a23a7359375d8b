"""Writing Darknet and Pascal VOC: what is read back is equal to the last bit, and what is lost is said."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rankless.data.datasets.open_split import open_annotations
from rankless.data.formats import darknet, voc
from rankless.data.formats.writing import ImageFiles
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.data.index.raw import NO_AREA, RawBuilder
from rankless.data.index.validation import validate
from rankless.errors import UserError

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


def same(one: Annotations, other: Annotations) -> bool:
    return one.class_names == other.class_names and all(
        np.array_equal(getattr(one, name).view(np.uint8), getattr(other, name).view(np.uint8))
        and getattr(one, name).dtype == getattr(other, name).dtype
        for name in ("sizes", "boxes", "labels")
    ) and np.array_equal(one.offsets, other.offsets)  # fmt: skip


# A float32 position on an image; below 1e-5 pixels the center and size of a box cannot hold its edge.
PLACE = st.one_of(
    st.just(0.0), st.floats(2**-13, 1, width=32), st.just(1.0), st.sampled_from([1 / 3, 0.1, 0.7])
)


def extents(draw: st.DrawFn, side: int) -> tuple[float, float]:
    low, high = sorted(float(np.float32(draw(PLACE) * side)) for _ in range(2))
    return (low, high) if low < high else (0.0, float(side))


@st.composite
def annotated(draw: st.DrawFn) -> tuple[list[list[tuple[float, ...]]], list[list[int]]]:
    boxes: list[list[tuple[float, ...]]] = []
    labels: list[list[int]] = []
    for height, width in SIDES.tolist():
        rows = {}
        for _ in range(draw(st.integers(0, 4))):
            (x1, x2), (y1, y2) = extents(draw, width), extents(draw, height)
            rows[(draw(st.integers(0, 2)), x1, y1, x2, y2)] = None
        if height == 77:
            rows |= {(label, 0.0, 0.0, 31.0, 77.0): None for label in range(3)}
        boxes.append([row[1:] for row in rows])
        labels.append([row[0] for row in rows])
    return boxes, labels


@pytest.mark.slow
@settings(settings.get_profile("files"))
@given(annotated())
def test_through_both_formats_and_back(
    images: list[str], tmp_path_factory: pytest.TempPathFactory, drawn: tuple[list, list]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "round"
    data = made(images, *drawn)
    assert written(voc, folder / "voc", {"train": data}) == []
    first = open_annotations(str(folder / "voc"), "train", "voc")
    assert same(first, data)
    assert written(darknet, folder / "darknet", {"train": first}) == []
    assert same(open_annotations(str(folder / "darknet"), "train", "darknet"), data)


def test_a_label_file_as_others_read_it(tmp_path: Path, images: list[str]) -> None:
    data = made(images, [[], [(0, 0, 40, 20), (10, 5, 20, 10)], []], [[], [2, 0], []])
    written(darknet, tmp_path / "out", {"train": data, "val": data})
    assert (tmp_path / "out/labels/train/1.txt").read_text() == "2 0.5 0.5 1 1\n0 0.375 0.375 0.25 0.25\n"
    assert (tmp_path / "out/labels/val/0.txt").read_text() == ""
    description = yaml.safe_load((tmp_path / "out/data.yaml").read_text(encoding="utf-8"))
    names = ["ape", "cat", "über dog"]
    assert description == {"train": "images/train", "val": "images/val", "names": names}
    assert (tmp_path / "out/images/train/2.png").read_bytes() == Path(images[2]).read_bytes()


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
