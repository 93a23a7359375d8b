"""Labels that do not hide each other, and letters of any script."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import get_data_path
from matplotlib.font_manager import get_font
from PIL import Image, ImageCms, ImageFont

from rankless.data.images import fonts
from rankless.data.images.drawing import COUNT, Mark, _ink, _link, annotate, color, place

DEJAVU = Path(get_data_path()) / "fonts/ttf/DejaVuSans.ttf"


def shared(one, other) -> float:
    sides = [min(one[axis + 2], other[axis + 2]) - max(one[axis], other[axis]) for axis in (0, 1)]
    return max(0.0, sides[0]) * max(0.0, sides[1])


boxes = st.tuples(*[st.floats(0, 1)] * 4).map(
    lambda b: (min(b[0], b[2]) * 640, min(b[1], b[3]) * 480, max(b[0], b[2]) * 640, max(b[1], b[3]) * 480)
)


@given(st.lists(boxes, max_size=25))
def test_no_label_hides_another_where_there_is_room(frames):
    """25 labels of 60 × 18 take a tenth of the image, so there is room wherever their boxes are."""
    labels = place([(60, 18)] * len(frames), frames, (640, 480))
    for one, other in combinations(labels, 2):
        assert shared(one, other) == 0
    for x1, y1, x2, y2 in labels:
        assert x1 >= 0 and y1 >= 0 and x2 <= 640 and y2 <= 480 and (x2 - x1, y2 - y1) == (60, 18)


def test_twenty_boxes_in_one_place():
    labels = place([(80, 20)] * 20, [(100.0, 100.0, 160.0, 150.0)] * 20, (640, 480))
    assert not any(shared(one, other) for one, other in combinations(labels, 2))
    # Near their box: the farthest is within six labels' heights.
    assert all(x1 < 160 + 6 * 20 and y1 < 150 + 6 * 20 for x1, y1, _, _ in labels)


def test_a_label_alone_stands_on_its_box():
    assert place([(60, 18)], [(100.0, 100.0, 200.0, 200.0)], (640, 480)) == [(100, 82, 160, 100)]
    # And on an image with no room at all it is still on it.
    assert place([(60, 18)] * 3, [(0.0, 0.0, 9.0, 9.0)] * 3, (10, 10))[0][:2] == (0, 0)


def test_a_label_away_from_its_box_has_a_line_to_it():
    frame = (100.0, 100.0, 160.0, 150.0)
    for touching in ((100, 82, 160, 100), (110, 110, 170, 128), (160, 120, 220, 138)):
        assert _link(frame, touching) is None
    assert _link(frame, (200, 40, 260, 58)) == (160, 100, 200, 58)
    assert _link(frame, (120, 200, 180, 218)) == (120, 150, 120, 200)
    crowd = [Mark((300.0, 200.0, 330.0, 230.0), "a name that is long: 90%", number) for number in range(9)]
    drawn = np.asarray(annotate(Image.new("RGB", (640, 480), "white"), crowd))
    away = [number for number in range(9) if (drawn[[199, 231], 290:340] == color(number)).all(2).any()]
    assert len(away) > 2, "lines of several colors end at the box"


@pytest.mark.parametrize("box", [(20, 20, 180, 130), (0, 0, 199, 149), (50, 40, 58, 50), (90, 10, 97, 140)])
def test_the_image_is_seen_between_the_dashes_of_a_box(box):
    solid, dashed = (
        np.asarray(annotate(Image.new("RGB", (200, 150), "white"), [Mark(box, "", 3, dashed=dashed)])).min(2)
        < 255
        for dashed in (False, True)
    )
    rows, columns = (np.flatnonzero(solid.any(axis)) for axis in (1, 0))
    assert not (dashed & ~solid).any()
    assert dashed[rows[[0, 0, -1, -1]], columns[[0, -1, 0, -1]]].all(), "the corners"
    if len(rows) > 40:
        assert 0.5 * solid.sum() < dashed.sum() < 0.85 * solid.sum()


@pytest.mark.slow
@pytest.mark.parametrize("size", [(200, 150), (8000, 6000)])
def test_labels_are_legible_on_any_size(size):
    middle = (size[0] / 2, size[1] / 2)
    whole = annotate(Image.new("RGB", size, "white"), [Mark(middle * 2, "name: 90%", 0)])
    around = [round(side) for side in (middle[0] - 90, middle[1] - 70, middle[0] + 90, middle[1] + 70)]
    if size[0] > 1000:
        around = [around[0] - 500, around[1] - 300, around[2] + 500, around[3] + 300]
    drawn = np.asarray(whole.crop(around))
    filled = (drawn == color(0)).all(2).sum(1)
    assert (filled > filled.max() / 3).sum() >= max(12, 0.008 * size[1])


def test_a_font_is_asked_letter_by_letter():
    """Matplotlib's own reading of a font's table of letters is the oracle."""
    known = get_font(str(DEJAVU)).get_charmap()
    for letter in "aé€жΩآ中한😀\u0e01":
        assert fonts._draws(str(DEJAVU), letter) == (ord(letter) in known), letter


@pytest.fixture
def bare(monkeypatch, tmp_path):
    for name in ("XDG_DATA_DIRS", "XDG_DATA_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.delenv(fonts.VARIABLE, raising=False)
    for cache in (fonts._path_for, fonts._files):
        cache.cache_clear()
    yield
    for cache in (fonts._path_for, fonts._files):
        cache.cache_clear()


def test_without_a_font_the_number_stands_there_and_is_counted(bare):
    assert fonts.unwritable(["red", "白细胞", "жёлтый", "赤"]) == ["白细胞", "赤"]
    box = (40.0, 60.0, 200.0, 150.0)
    blank = Image.new("RGB", (320, 240), "gray")
    chinese = annotate(blank, [Mark(box, "白细胞: 95%", 3)])
    assert chinese.tobytes() == annotate(blank, [Mark(box, "#3: 95%", 3)]).tobytes()
    cyrillic = annotate(blank, [Mark(box, "жёлтый: 95%", 3)])
    assert cyrillic.tobytes() != annotate(blank, [Mark(box, "#3: 95%", 3)]).tobytes()


def test_the_font_that_is_named_comes_first(bare, monkeypatch, tmp_path):
    monkeypatch.setenv(fonts.VARIABLE, str(DEJAVU))
    assert fonts._path_for(frozenset("ж")) == str(DEJAVU)
    monkeypatch.setenv(fonts.VARIABLE, str(tmp_path / "gone.ttf"))
    fonts._path_for.cache_clear()
    assert isinstance(fonts.font_for("ж", 12), ImageFont.FreeTypeFont)  # Matplotlib's


def test_system_fonts_are_found_where_they_are_installed(bare, monkeypatch, tmp_path):
    folder = tmp_path / "share/fonts/truetype"
    folder.mkdir(parents=True)
    (folder / "wqy-microhei.ttc").write_bytes(DEJAVU.read_bytes())
    (folder / "AAA.ttf").write_bytes(DEJAVU.read_bytes())
    (folder / "broken.ttf").write_bytes(b"no font")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    found = fonts._files("")
    assert Path(found[0]).name == "wqy-microhei.ttc" and len(found) >= 4
    assert fonts._path_for(frozenset("ж")) == found[0]


def lab(colors: list[tuple[int, int, int]]) -> np.ndarray:
    """CIE L*a*b*, (N, 3), by LittleCMS."""
    image = Image.fromarray(np.array([colors], np.uint8))
    to_lab = ImageCms.buildTransform(
        ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB"
    )
    values = np.asarray(ImageCms.applyTransform(image, to_lab))[0]
    return np.stack([values[:, 0] * (100 / 255), *values[:, 1:].view(np.int8).T.astype(float)], 1)


@pytest.mark.parametrize(("classes", "apart"), [(3, 70), (10, 28), (17, 22), (40, 14), (80, 8)])
def test_the_colors_of_classes_are_told_apart(classes, apart):
    """A difference of 2.3 in CIE's space is just seen; two colors side by side differ by ten times that."""
    points = lab([color(label) for label in range(classes)])
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    assert distances[np.triu_indices(classes, 1)].min() > apart


def test_what_is_written_on_a_class_color_is_readable():
    def luminance(rgb):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in rgb)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for label in range(COUNT):
        light, dark = sorted((luminance(color(label)), luminance(_ink(color(label)))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, "WCAG 2, level AA"
    assert color(COUNT) == color(0)
