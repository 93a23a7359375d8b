"""The images that are shown, and the sheet they are shown on."""

import json
import re
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFont

from rankless.curation import contact_sheet
from rankless.curation.sampling import Selection, Shown, select
from rankless.data.images.drawing import Mark, color
from rankless.errors import UserError
from rankless.files.outputs import SHEETS, drawing
from rankless.recipe import load
from rankless.tasks.detect import Detect
from support.small_data import classes, detection

BOXES = [[[1, 1, 9, 9, number % 3]] for number in range(12)]


def captions(selection):
    return [one.caption for one in selection.shown]


def tensor(shown):
    return torch.from_numpy(np.asarray(shown.image).copy()).permute(2, 0, 1)


def recipe(task):
    return load.load("digits", ["seed=5", "data.augment.mosaic=1"])


# --- which ------------------------------------------------------------------------------------------------


def test_a_image_with_its_boxes(tmp_path):
    root = detection(tmp_path / "d", {"train": [[[1, 2, 9, 8, 2], [5, 5, 50, 30, 0]]]})
    found = select(str(root))
    assert found.title == "d · train · 1 of 1"
    (one,) = found.shown
    assert one.marks == [Mark((1, 2, 9, 8), "eel", 2), Mark((5, 5, 50, 30), "cat", 0)]
    assert (one.caption, one.classes) == ("train-000.png", {0, 2})
    with Image.open(root / "images/train-000.png") as stored:
        assert np.array_equal(np.asarray(one.image), np.asarray(stored))


def test_the_seed_decides_which(tmp_path):
    root = str(detection(tmp_path / "d", {"train": BOXES}))
    drawn = [captions(select(root, count=5, seed=seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 5
    assert len(captions(select(root, count=99))) == 12


def test_one_class_alone(tmp_path):
    found = select(str(detection(tmp_path / "d", {"train": BOXES})), class_name="dog")
    assert captions(found) == [f"train-{number:03}.png" for number in (1, 4, 7, 10)]
    assert found.title == "d · train · 4 of 4 · with 'dog'"


def test_a_broken_image_has_its_place_and_its_reason(tmp_path):
    root = detection(tmp_path / "d", {"train": BOXES[:2]})
    (root / "images/train-001.png").write_bytes(b"nothing")
    good, broken = select(str(root)).shown
    assert good.image is not None
    assert broken.image is None
    assert broken.caption == "train-001.png: the content is not in a known image format"


def test_boxes_to_ignore_are_dashed_and_named(tmp_path):
    (tmp_path / "d").mkdir()
    Image.new("RGB", (64, 64)).save(tmp_path / "d/a.png")
    marks = ({"iscrowd": 1}, {"ignore": 1}, {})
    boxes = [
        {"id": at, "image_id": 1, "category_id": 1, "bbox": [9 * at, 8, 8, 8]} | mark
        for at, mark in enumerate(marks, 1)
    ]
    one = {"images": [{"id": 1, "file_name": "a.png"}], "categories": [{"id": 1, "name": "cup"}]}
    (tmp_path / "d/train.json").write_text(json.dumps(one | {"annotations": boxes}))
    options = ["model.name=yolov4-tiny", "model.image_size=64", "data.augment.preset=none", "data.val=none"]
    stored = select(str(tmp_path / "d"))
    trained = select(str(tmp_path / "d"), augmented=lambda task: load.load("digits", options))
    for found, names in (
        (stored, ["cup (crowd)", "cup (difficult)", "cup"]),
        (trained, ["ignored"] * 2 + ["cup"]),
    ):
        (shown,) = found.shown
        assert [(mark.text, mark.dashed) for mark in shown.marks] == [(name, name != "cup") for name in names]
        assert contact_sheet.page(found).count('class="chip"') == 1


def test_class_folders(tmp_path):
    root = classes(tmp_path / "c", {"train": {"cat": 2, "dog": 2}, "val": {"cat": 1, "dog": 1}})
    assert captions(select(str(root), split="val")) == ["cat · 000.png", "dog · 000.png"]


def test_class_folders_as_trained_on(tmp_path):
    root = classes(tmp_path / "c", {"train": {"cat": 2, "dog": 2}, "val": {"cat": 1, "dog": 1}})
    asked = []

    def chosen(task):
        asked.append(task)
        return load.load("digits-classify", ["data.augment.mixup=0.9", "model.image_size=32"])

    found = select(str(root), augmented=chosen)
    assert asked == ["classify"]
    assert [one.image.size for one in found.shown] == [(32, 32)] * 4
    assert any(re.match(r"(cat|dog): \d+%, (cat|dog): \d+% · 00", caption) for caption in captions(found))


@pytest.mark.slow
def test_the_built_in_data_as_trained_on_is_what_training_gets():
    found = select("digits", count=3, augmented=recipe)
    examples = Detect(recipe("detect")).training_data()
    for one in found.shown:
        number = int(one.caption.rpartition("/")[2])
        item = examples.item(number, 0)
        assert torch.equal(tensor(one), item.image)
        assert [list(mark.box) for mark in one.marks] == item.boxes.tolist()


def test_the_built_in_data_with_one_class():
    found = select("digits", split="val", count=3, class_name="7")
    assert len(found.shown) == 3
    assert all("7" in {mark.text for mark in one.marks} for one in found.shown)


# --- the sheet --------------------------------------------------------------------------------------------


def gray(width, height, marks=(), caption="a.png"):
    return Shown(Image.new("RGB", (width, height), (90, 90, 90)), list(marks), caption, frozenset())


def test_boxes_are_drawn_where_they_are_at_the_sheets_scale():
    one = gray(800, 400, [Mark((200, 100, 600, 300), "", 0)])
    image = np.asarray(contact_sheet.sheet(Selection("t", ("cat",), [one])))
    rows, columns = np.nonzero((image == color(0)).all(2))
    # The legend's color is above; the frame is just outside 75..225 × 150..450 of an image 300 high.
    top = contact_sheet._TITLE + contact_sheet._LEGEND
    frame = rows > top
    assert abs(columns[frame].min() - 14 - 150) <= 4
    assert abs(columns[frame].max() - 14 - 450) <= 4
    assert abs(rows[frame].min() - top - 75) <= 4
    assert abs(rows[frame].max() - top - 225) <= 4


# From a fifteenth of a row's height to three times it: larger images take seconds to make and to resize.
sizes = st.tuples(st.integers(20, 900), st.integers(20, 900)).filter(
    lambda size: 0.36 < size[0] / size[1] < 5.9
)


@given(st.lists(sizes, min_size=1, max_size=20))
@settings(settings.get_profile("files"))
def test_rows_are_full_and_images_keep_their_aspect(sizes):
    """Every row ends where the sheet does, unless it were too high: nothing of an image is missing."""
    rows = contact_sheet._rows([gray(*size) for size in sizes])
    assert [room.shown.image.size for row in rows for room in row] == sizes
    heights = [row[0].height for row in rows]
    assert max(heights) <= 3 * contact_sheet.HEIGHT
    widths = [sum(room.width for room in row) + 14 * (len(row) - 1) for row in rows]
    assert max(widths) <= contact_sheet.WIDTH + 2
    full = [width for width, height in zip(widths, heights, strict=True) if height < 3 * contact_sheet.HEIGHT]
    assert not full or max(widths) - min(full) <= len(sizes)
    for row in rows:
        assert len({room.height for room in row}) == 1
        for room in row:
            width, height = room.shown.image.size
            assert abs(room.width - room.height * width / height) <= 1 + room.width / room.height
            cell = contact_sheet._cell(room.shown, room.width, room.height)
            assert room.width - cell.width <= 1 + room.width // 100
            assert room.height - cell.height <= 1 + height / width  # widths are whole pixels


@given(st.lists(st.floats(0.3, 6), min_size=1, max_size=8), st.integers(1, 8))
def test_rows_are_as_even_as_they_can_be(lengths, count):
    """Every other division is tried."""
    count = min(count, len(lengths))
    mean = sum(lengths) / count

    def cost(ends):
        return sum((sum(lengths[a:b]) - mean) ** 2 for a, b in pairwise([0, *ends]))

    every = ([*cut, len(lengths)] for cut in combinations(range(1, len(lengths)), count - 1))
    assert cost(contact_sheet._evenly(lengths, count)) <= min(map(cost, every)) + 1e-9


def test_labels_are_decided_image_by_image():
    box = Mark((10, 10, 60, 60), "a class", 0)
    few, many = gray(400, 300, [box] * 3), gray(400, 300, [box] * 60)
    short = gray(400, 300, [box._replace(short="c")] * 60)  # as on a sheet of errors
    assert contact_sheet._texts(short, (400, 300)) == ["c"] * 60
    sheet = np.asarray(contact_sheet.sheet(Selection("t", ("a class",), [few, many])))
    left, right = np.split((sheet[80:] == color(0)).all(2), [sheet.shape[1] // 2], 1)
    assert left.sum() > 1.5 * right.sum(), "a label is a filled rectangle"


def test_tall_wide_tiny_and_broken_images_fit():
    shown = [gray(10, 4000), gray(4000, 10), gray(1, 1), Shown(None, [], "gone", frozenset())]
    sheet = contact_sheet.sheet(Selection("t" * 500, (), shown))
    assert sheet.width == contact_sheet.WIDTH + 28 and sheet.height < 1000
    small = contact_sheet.sheet(Selection("t", (), [gray(32, 32)]))
    assert small.width == contact_sheet.LARGEST_ZOOM * 32 + 28


def test_a_page_needs_nothing_else(tmp_path):
    shown = [gray(40, 40, [Mark((1, 1, 9, 9), "<b>", 0)], "<script>.png")]
    out = tmp_path / "page.html"
    contact_sheet.write(Selection("<i>", ("<b>",), shown), out, drawing(out, "test", SHEETS))
    text = out.read_text()
    assert "<script>.png" not in text and "<i>" not in text.replace("<i style", "") and "<b>" not in text
    assert "&lt;script&gt;.png · 1 box<" in text
    assert {each[:5] for each in re.findall(r'(?:src|href)="(.*?)"', text)} == {"data:"}


def test_a_sheet_without_images_is_refused(tmp_path):
    out = tmp_path / "sheet.png"
    with pytest.raises(UserError, match="no images to show"):
        contact_sheet.write(Selection("t", (), []), out, drawing(out, "test", SHEETS))


@given(st.text("aWi_. ·é", max_size=120), st.integers(20, 300), st.sampled_from([14, 17, 20]))
def test_no_caption_is_cut(text, room, size):
    """Every letter stands there, in lines that fit; a word of its own line is divided only if it must be."""
    lines = contact_sheet._Text(text, size, room).text.split("\n")
    assert "".join("".join(lines).split()) == "".join(text.split())
    font = ImageFont.load_default(size)
    assert all(font.getlength(line) <= room for line in lines)
    if all(font.getlength(word) <= room for word in text.split(" ")):
        assert " ".join(lines).split() == text.split()


def test_lines_of_captions_have_room_below_their_images():
    shown = [gray(60, 40, caption="a caption of many words " * 8)] * 4
    one, four = (contact_sheet.sheet(Selection("t", (), row)) for row in (shown[:1], shown))
    short = contact_sheet.sheet(Selection("t", (), [gray(60, 40)]))
    assert one.height >= short.height + 2 * 14 and one.width == short.width
    ink = np.asarray(one).min(2) < 200
    assert not ink[-10:].any() and ink[short.height :].any(1).sum() > 14
    assert four.width > one.width
