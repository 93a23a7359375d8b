"""Numbers that were counted by hand, and the image of them."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from rankless.curation import contact_sheet
from rankless.curation.data_set import open_data_set
from rankless.curation.sampling import select
from rankless.curation.statistics import box_centers, box_sides, object_areas, statistics
from rankless.curation.statistics_plot import figure, plot
from rankless.errors import UserError
from rankless.files.outputs import CHARTS, SHEETS, drawing
from support.small_data import classes, detection, write_image
from support.small_disk import small_files


@pytest.fixture
def data(tmp_path):
    """Three images of 200 × 100 (width × height) and one of 50 × 100."""
    boxes = [
        # 10 × 20 = 200 is small; 100 × 50 = 5,000 medium; 100 × 100 = 10,000 large
        [[0, 0, 10, 20, 0], [0, 0, 100, 50, 1], [100, 0, 200, 100, 0]],
        [],
        [[0, 0, 32, 32, 0]],  # 32² is medium
        [[0, 0, 50, 100, 0]],
    ]
    root = detection(tmp_path / "d", {"train": boxes, "val": [[]]})
    for number in range(3):
        write_image(root / f"images/train-00{number}.png", number, (200, 100))
    write_image(root / "images/train-003.png", 3, (50, 100))
    (root / "images/val-000.png").write_bytes(b"nothing")
    return open_data_set(str(root), examined=True)


def test_counts(data):
    train = statistics(data).splits["train"]
    assert (train.images, train.boxes, train.empty, train.unreadable) == (4, 5, 1, 0)
    assert train.classes == {"cat": 4, "dog": 1, "eel": 0}
    assert (train.small, train.medium, train.large) == (1, 3, 1)
    assert train.common_sizes == {"200 × 100": 3, "50 × 100": 1}
    assert (train.width.least, train.width.median, train.width.most) == (50, 200, 200)
    assert (train.aspect.least, train.aspect.most, train.aspect.mean) == (0.5, 2, 1.625)
    assert (train.boxes_per_image.median, train.boxes_per_image.mean) == (1, 1.25)
    # The share of the image's area, as a side: of 10 × 20 in 200 × 100 it is √(0.05 · 0.2) = 0.1.
    assert train.box_side.least == pytest.approx(0.1)
    assert train.box_side.most == pytest.approx(1)
    assert (train.box_aspect.least, train.box_aspect.most) == (0.5, 2)


def test_places_are_shares_of_the_image(data):
    train = data.splits["train"]
    assert box_centers(train)[1].tolist() == [0.25, 0.25]
    assert box_sides(train)[4].tolist() == [1, 1]
    assert object_areas(train).tolist() == [200, 5000, 10000, 1024, 5000]


def test_the_formats_own_areas_count(data):
    train = data.splits["train"]
    train = replace(train, areas=np.array([np.nan, 12, np.nan, np.nan, np.nan], np.float32))
    assert object_areas(train).tolist() == [200, 12, 10000, 1024, 5000]


def test_remarks(data):
    assert statistics(data).remarks == [
        "train: empty classes (1 of 3): 'eel'",
        "val: empty classes (3 of 3): 'cat', 'dog', 'eel'",
        "val: 1 image cannot be read",
        "1 finding in annotations and image headers; to list all findings, run "
        f"`rankless data check {data.root}`",
    ]


def test_uneven_classes_are_remarked(tmp_path):
    root = classes(tmp_path / "c", {"train": {"cat": 20, "dog": 2}})
    found = statistics(open_data_set(str(root)))
    (remark,) = found.remarks
    assert all(words in remark for words in ("train: ", "'cat'", "10 times", "'dog'"))
    assert found.splits["train"].boxes is None
    assert found.splits["train"].boxes_per_image is None


def test_nothing_is_no_number(data):
    val = json.loads(json.dumps(statistics(data).as_json()))["splits"]["val"]
    assert val["box_side"]["median"] is None
    assert val["width"]["median"] is None
    assert val["unreadable"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "JPG", "webp", "svg", "pdf"])
def test_the_image_is_drawn(data, tmp_path, ending):
    plot(data, tmp_path / f"stats.{ending}", drawing(tmp_path / f"stats.{ending}", "test"))
    begin = {"png": b"\x89PNG", "JPG": b"\xff\xd8", "webp": b"RIFF", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert (tmp_path / f"stats.{ending}").read_bytes().startswith(begin)
    if ending == "png":
        with Image.open(tmp_path / "stats.png") as image:
            assert len(image.convert("RGB").getcolors(1_000_000)) > 100
            assert image.width > 1000


@pytest.mark.slow
def test_names_like_formulas_names_missing_in_the_font_and_many_classes(tmp_path):
    names = ["$x", "a_b^c$", "猫", *(f"class {number}" for number in range(200))]
    root = detection(tmp_path / "d", {"train": [[[1, 1, 9, 9, label] for label in range(3)]]}, names)
    plot(open_data_set(str(root)), tmp_path / "stats.png", drawing(tmp_path / "stats.png", "test"))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "boxed"), [(1, True), (12, False), (200, True), (200, False)])
def test_titles_do_not_touch_and_panels_are_full(tmp_path, count, boxed):
    """What Matplotlib lays out: texts that overlap nothing, and no panel without a mark or a sentence."""
    names = [f"class {number} with a long name" for number in range(count)]
    if boxed:
        root = detection(tmp_path / "d", {"train": [[[1, 1, 9, 9, 0], [2, 2, 19, 9, count - 1]]]}, names)
    else:
        root = classes(tmp_path / "c", {"train": dict.fromkeys(names, 1), "val": {names[0]: 1}})
    drawn = figure(open_data_set(str(root)))
    drawn.draw_without_rendering()
    panels = [axes for axes in drawn.axes if axes.get_label() != "<colorbar>"]
    assert len(panels) == (6 if boxed else 3)
    texts = [drawn._suptitle, *drawn.legends, *(axes.title for axes in drawn.axes)]
    texts += [axes._left_title for axes in drawn.axes]
    frames = [text.get_window_extent() for text in texts if getattr(text, "get_text", lambda: "x")()]
    assert len(frames) == len(panels) + 1 + (not boxed)
    for one, other in combinations(frames, 2):
        assert not one.overlaps(other)
    for axes in panels:
        assert axes.patches or axes.images or axes.collections or axes.texts
        width, height = axes.get_window_extent().size
        assert width > 100 and height > 100
    if count <= 12:
        heights = [axes.get_window_extent().height for axes in panels]
        assert heights[0] < 1.5 * min(heights[1:]), "few classes are given no giant panel"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old"), [("sheet.png", True), ("sheet.html", False), ("plot.png", False), ("plot.svg", True)]
)
def test_a_full_disk(tmp_path, name, old):
    root = detection(tmp_path / "d", {"train": [[[1, 1, 9, 9, 0]]] * 4})
    data, shown = open_data_set(str(root)), select(str(root))
    out = tmp_path / "out" / name
    out.parent.mkdir()
    if old:
        out.write_text("old")
    said = f"{name}: cannot be written: File too large"
    with pytest.raises(UserError, match=said), small_files(500):
        write = contact_sheet.write if "sheet" in name else plot
        outputs = drawing(out, "test", SHEETS if "sheet" in name else CHARTS, force=True)
        write(shown if "sheet" in name else data, out, outputs)
    left = {each.name: each.read_text() for each in out.parent.iterdir()}
    assert left.pop(".rankless-outputs").count("\n") == 1, "the list is begun, and lists nothing"
    assert left == ({name: "old"} if old else {})
