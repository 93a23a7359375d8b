"""Mosaics: a box is where its pixels are, nothing depends on what came before, every part has its switch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.augment.mosaic import mosaic
from rankless.geometry.letterbox import GRAY
from rankless.randomness import generator
from rankless.recipe.schema import Augment
from rankless.structures import Sample

SIZE = (128, 160)
COLORS = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]], dtype=torch.uint8) * 255
STILL = Augment(flip=0.0, hue=0.0, saturation=0.0, value=0.0, scale=0.0, translate=0.0)
MOVES = Augment(
    flip=0.5, flip_vertical=0.5, hue=0.0, saturation=0.0, value=0.0, scale=0.8, translate=0.3, mosaic=1.0
)


class Drawn:
    """Black images with a filled rectangle each; the n-th that is read has the n-th color and label n."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.asked: list[int] = []
        self.shapes: list[tuple[int, int, tuple[int, ...]]] = []

    def __call__(self, number: int) -> Sample:
        height, width = self.rng.integers(60, 400, 2).tolist()
        x, y = int(self.rng.integers(0, width - 30)), int(self.rng.integers(0, height - 30))
        box = (x, y, int(self.rng.integers(x + 20, width + 1)), int(self.rng.integers(y + 20, height + 1)))
        image = torch.zeros(3, height, width, dtype=torch.uint8)
        image[:, box[1] : box[3], box[0] : box[2]] = COLORS[len(self.asked)][:, None, None]
        label = torch.tensor([len(self.asked)])
        self.asked.append(number)
        self.shapes.append((height, width, box))
        return Sample(image, torch.tensor([box], dtype=torch.float32), label)


def seen(image: torch.Tensor, label: int) -> np.ndarray:
    return ((image > 127) == (COLORS[label] > 127)[:, None, None]).all(0).numpy()


def extent(where: np.ndarray) -> list[int]:
    rows, columns = np.flatnonzero(where.any(1)), np.flatnonzero(where.any(0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


@given(seed=st.integers(0, 10**6))
def test_a_box_is_where_its_pixels_are(seed: int) -> None:
    drawn = Drawn(seed)
    image, boxes, labels = mosaic(drawn, 7, range(100), SIZE, MOVES, generator(seed))
    assert image.shape == (3, *SIZE) and image.dtype == torch.uint8
    assert boxes.dtype == torch.float32 and labels.dtype == torch.int64
    assert len(drawn.asked) <= 4 and len(set(labels.tolist())) == len(labels)
    for box, label in zip(boxes.numpy(), labels.tolist(), strict=True):
        found = seen(image, label)
        if min(box[2:] - box[:2]) >= 4:  # of less, half may be blended away
            assert np.abs(np.array(extent(found)) - box).max() < 1.5


@given(seed=st.integers(0, 10**6), perspective=st.sampled_from([0.0, 0.15]))
def test_a_box_encloses_its_pixels_when_the_mosaic_is_turned(seed: int, perspective: float) -> None:
    options = replace(MOVES, rotate=60.0, shear=10.0, perspective=perspective)
    image, boxes, labels = mosaic(Drawn(seed), 7, range(100), SIZE, options, generator(seed))
    assert len(set(labels.tolist())) == len(labels)
    limits = np.array([SIZE[1], SIZE[0]])
    for label in range(4):
        found = seen(image, label)
        if label not in labels:
            continue
        box = boxes[labels == label][0].numpy()
        assert (box[:2] >= 0).all() and (box[2:] <= limits).all()
        if min(box[2:] - box[:2]) < 6 or not found.any():
            continue
        around = np.array(extent(found))
        assert (around[:2] >= box[:2] - 1.5).all() and (around[2:] <= box[2:] + 1.5).all()
        if (box[:2] > 0).all() and (box[2:] < limits).all():
            assert np.abs(around - box).max() < 2.5  # the border cuts nothing, so it is close


def test_a_turned_mosaic_shows_each_place_in_its_own_quarter() -> None:
    for seed in range(6):
        still = mosaic(Drawn(seed), 7, range(100), SIZE, STILL, generator(seed))
        turned = mosaic(Drawn(seed), 7, range(100), SIZE, replace(STILL, rotate=1e-6), generator(seed))
        assert ((still[0].int() - turned[0].int()).abs() > 60).float().mean() < 0.03
        common = [(still[2] == label).nonzero().item() for label in turned[2].tolist() if label in still[2]]
        assert len(common) >= len(still[2]) - 1 and torch.equal(still[2][common], turned[2][: len(common)])
        assert (still[1][common] - turned[1][: len(common)]).abs().max() < 1.5


@given(seed=st.integers(0, 10**6), least=st.sampled_from([None, 0.0, 0.25, 0.6]))
def test_what_is_seen_of_a_box_decides_whether_it_stays(seed: int, least: float | None) -> None:
    drawn = Drawn(seed)
    options = STILL if least is None else replace(STILL, mosaic_min_area=least)
    image, _, labels = mosaic(drawn, 7, range(100), SIZE, options, generator(seed))
    least = 0.1 if least is None else least
    for label, (height, width, box) in enumerate(drawn.shapes):
        scale = min(SIZE[0] / height, SIZE[1] / width)
        full = np.array([box[2] - box[0], box[3] - box[1]]) * scale
        found = seen(image, label)
        left = np.array(extent(found)) if found.any() else np.zeros(4)
        sides = left[2:] - left[:2]
        low, high = ((sides + slack).clip(0).prod() / full.prod() for slack in (-2, 2))
        if high < least:
            assert label not in labels
        if low > least and sides.min() > 3:
            assert label in labels


@given(seed=st.integers(0, 10**6), height=st.integers(8, 300), width=st.integers(8, 300))
def test_four_images_meet_in_the_middle_part(seed: int, height: int, width: int) -> None:
    grays: list[int] = []

    def read(number: int) -> Sample:
        grays.append(20 * (len(grays) + 1))
        image = torch.full((3, height, width), grays[-1], dtype=torch.uint8)
        return Sample(image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))

    image, boxes, labels = mosaic(read, 0, range(1), SIZE, STILL, generator(seed))
    assert boxes.shape == (0, 4) and labels.shape == (0,) and len(grays) == 4
    assert torch.equal(image[0], image[1]) and set(image.unique().tolist()) <= {*grays, GRAY}
    corners = []
    for place, gray in enumerate(grays):
        where = (image[0] == gray).numpy()
        x1, y1, x2, y2 = extent(where)
        assert where[y1:y2, x1:x2].all()  # a whole rectangle
        corners.append((x1 if place % 2 else x2, y1 if place // 2 else y2))
    xs, ys = zip(*corners, strict=True)
    assert max(xs) - min(xs) <= 1 and max(ys) - min(ys) <= 1
    for found, side in ((xs, SIZE[1]), (ys, SIZE[0])):
        assert 0.2 * side - 2 <= min(found) and max(found) <= 0.8 * side + 2


@pytest.mark.slow
def test_the_image_itself_is_in_any_place_and_the_others_are_of_all() -> None:
    places, others = set(), set()
    for seed in range(200):
        drawn = Drawn(seed)
        mosaic(drawn, 5, range(6), SIZE, STILL, generator(seed))
        assert drawn.asked.count(5) == 1
        places.add(drawn.asked.index(5))
        others |= set(drawn.asked)
    assert places == {0, 1, 2, 3} and others == set(range(6))


def test_images_of_which_nothing_is_seen_are_not_read() -> None:
    far = Augment(**{**vars(STILL), "translate": 0.95})
    counts = set()
    for seed in range(40):
        drawn = Drawn(seed)
        image, boxes, _ = mosaic(drawn, 0, range(9), SIZE, far, generator(seed))
        counts.add(len(drawn.asked))
        assert bool((boxes >= 0).all()) and image.shape == (3, *SIZE)
    assert counts == {1, 2, 4}


@pytest.mark.slow
def test_the_zoom_is_of_all_four_and_covers_its_range_evenly() -> None:
    corners = torch.cartesian_prod(torch.arange(0.0, 152, 16), torch.arange(0.0, 120, 16))
    squares = torch.cat((corners, corners + 8), 1)

    def read(number: int) -> Sample:
        image = torch.zeros(3, *SIZE, dtype=torch.uint8)
        return Sample(image, squares, torch.zeros(len(squares), dtype=torch.int64))

    zooms = []
    for seed in range(300):
        _, boxes, _ = mosaic(read, 0, range(1), SIZE, replace(STILL, scale=1.0), generator(seed))
        widths = (boxes[:, 2] - boxes[:, 0]) / 8
        zooms.append(float(widths.max().log2()))  # cut squares are narrower
        assert float((widths > 0.98 * widths.max()).float().mean()) > 0.5
    assert -1.01 < min(zooms) < -0.95 and 0.95 < max(zooms) < 1.01 and abs(np.mean(zooms)) < 0.1


@pytest.mark.parametrize(("key", "axis"), [("flip", -1), ("flip_vertical", -2)])
def test_mirrors_turn_the_whole_and_change_no_other_draw(key: str, axis: int) -> None:
    for seed in range(8):
        plain = mosaic(Drawn(seed), 7, range(100), SIZE, STILL, generator(seed))
        turned = mosaic(Drawn(seed), 7, range(100), SIZE, replace(STILL, **{key: 1.0}), generator(seed))
        assert torch.equal(turned[0], plain[0].flip(axis)) and torch.equal(turned[2], plain[2])
        side = SIZE[axis]
        for first, last in ((0, 2), (1, 3)):
            if (axis == -1) == (first == 0):
                assert torch.equal(turned[1][:, first], side - plain[1][:, last])
            else:
                assert torch.equal(turned[1][:, first], plain[1][:, first])


def test_color_is_of_each_image() -> None:
    def read(number: int) -> Sample:
        image = torch.full((3, 160, 160), 100, dtype=torch.uint8)
        return Sample(image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))

    options = Augment(**{**vars(STILL), "value": 0.5})
    image, *_ = mosaic(read, 0, range(1), SIZE, options, generator(3))
    tones = set(image.unique().tolist()) - {GRAY}
    assert len(tones) == 4 and min(tones) >= 66 and max(tones) <= 150
