"""Augmentation: boxes follow their pixels, color follows the color wheel, nothing else moves."""

import colorsys
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.augment.resample import augment, color_matrix, recolor
from rankless.geometry.letterbox import GRAY, letterbox, to_input
from rankless.randomness import generator
from rankless.recipe.schema import Augment
from rankless.structures import Sample

OFF = Augment(flip=0.0, hue=0.0, saturation=0.0, value=0.0, scale=0.0, translate=0.0)
SIZE = (128, 160)


def sample(height: int, width: int, box: tuple[int, int, int, int]) -> Sample:
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[:, box[1] : box[3], box[0] : box[2]] = 255
    return Sample(image, torch.tensor([box], dtype=torch.float32), torch.tensor([3]))


@given(height=st.integers(5, 300), width=st.integers(5, 300), seed=st.integers(0, 99))
def test_all_off_is_the_letterbox_bit_for_bit(height: int, width: int, seed: int) -> None:
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8)
    boxes = torch.tensor([[0.0, 0, width, height], [1, 1, 1.5, 1.5]])
    got, got_boxes, labels, where = augment(
        Sample(image, boxes, torch.tensor([1, 2])), SIZE, OFF, generator(seed)
    )
    expected, expected_where = letterbox(image, SIZE)
    assert torch.equal(got, expected) and where == expected_where
    assert torch.allclose(got_boxes, to_input(boxes, where), rtol=0, atol=1e-3)
    assert labels.tolist() == [1, 2]


def test_most_boxes_stay_and_cut_ones_go() -> None:
    options = Augment(flip=0.0, hue=0.0, saturation=0.0, value=0.0, scale=0.0, translate=0.99)
    kept = 0
    for seed in range(60):
        source = sample(128, 160, (0, 0, 160, 128))
        image, boxes, _, _ = augment(source, SIZE, options, generator(seed))
        share = float((image[0] == 255).float().mean())  # of the box, which is the whole image
        assert len(boxes) == (share >= 0.25), share
        if len(boxes):
            kept += 1
            sides = boxes[0, 2:] - boxes[0, :2]
            assert float(sides.prod()) == pytest.approx(share * 160 * 128, rel=1e-3)
    assert 6 < kept < 54


def test_a_sliver_goes_and_a_small_whole_box_stays() -> None:
    options = Augment(flip=0.0, hue=0.0, saturation=0.0, value=0.0, scale=0.0, translate=0.05)
    sliver = torch.tensor([[0.0, 0, 4, 128]])
    tiny = torch.tensor([[80.0, 64, 81, 65]])
    image = torch.zeros(3, *SIZE, dtype=torch.uint8)
    seen = set()
    for seed in range(40):
        _, boxes, labels, where = augment(
            Sample(image, torch.cat((sliver, tiny)), torch.tensor([0, 1])), SIZE, options, generator(seed)
        )
        left = 4 + where.left  # pixels of the sliver still on the input, if it is cut
        if where.left < 0:
            assert (0 in labels.tolist()) == (left >= 2)
            seen.add(left >= 2)
        assert 1 in labels.tolist()  # one pixel, but never shifted as far as the border
        assert bool((boxes >= 0).all())
    assert seen == {True, False}


@pytest.mark.slow
def test_draws_cover_their_ranges_evenly() -> None:
    image = torch.full((3, *SIZE), 200, dtype=torch.uint8)
    options = Augment(flip=0.3, hue=0.0, saturation=0.0, value=0.0, scale=1.0, translate=0.2)
    source = Sample(image, torch.tensor([[0.0, 0, 20, 128]]), torch.tensor([0]))
    scales, flips = [], 0
    for seed in range(400):
        _, boxes, _, where = augment(source, SIZE, options, generator(seed, "t"))
        scales.append(np.log2(where.scale))
        flips += len(boxes) > 0 and float(boxes[0, 0]) > 80
    assert -1 <= min(scales) < -0.97 and 0.97 < max(scales) <= 1
    assert abs(np.mean(scales)) < 0.07  # zooms in and out are equally likely
    assert 0.15 < flips / 400 < 0.35


@pytest.mark.parametrize(("height", "width"), [(64, 20), (640, 200)])
def test_the_gray_around_is_not_recolored(height: int, width: int) -> None:
    options = Augment(flip=0.0, hue=0.1, saturation=0.5, value=0.9, scale=0.0, translate=0.0)
    for seed in range(6):
        source = sample(height, width, (0, 0, width, height))
        placed, _, _, _ = augment(source, SIZE, options, generator(seed))
        assert bool((placed[:, :, :50] == GRAY).all()) and bool((placed[:, :, 115:] == GRAY).all())


def test_a_third_of_the_circle_sends_red_to_green_and_gray_stays() -> None:
    assert np.allclose(color_matrix(1 / 3, 1, 1) @ [1, 0, 0], [0, 1, 0], atol=1e-6)
    assert np.allclose(color_matrix(1 / 3, 1, 1) @ [0, 1, 0], [0, 0, 1], atol=1e-6)
    assert np.allclose(color_matrix(0, 1, 1), np.eye(3))
    for hue, saturation in ((0.2, 0.5), (0.7, 2), (0.4, 0)):
        assert np.allclose(color_matrix(hue, saturation, 1.5) @ [0.3, 0.3, 0.3], [0.45] * 3, atol=1e-6)


@given(rgb=st.tuples(*[st.floats(0.2, 0.8)] * 3), hue=st.floats(-0.05, 0.05), value=st.floats(0.5, 1.2))
def test_hue_turns_as_on_the_color_wheel(rgb: tuple[float, float, float], hue: float, value: float) -> None:
    before = colorsys.rgb_to_hsv(*rgb)
    after = colorsys.rgb_to_hsv(*(color_matrix(hue, 1.0, value) @ np.array(rgb)).tolist())
    if before[1] < 0.15:
        return  # grays have no hue to speak of
    turned = (after[0] - before[0] + 0.5) % 1 - 0.5
    # The hexagon of HSV against the circle of a rotation: their angles differ by at most 1.12°, either end.
    assert abs(turned - hue) < 2 * 1.2 / 360 + 1e-3


@given(
    st.lists(st.floats(-8, 8), min_size=9, max_size=9),
    st.integers(0, 2**31),
    st.sampled_from([1, 7, 64, 333]),
)
def test_recoloring_adds_without_rounding(numbers: list[float], seed: int, width: int) -> None:
    """In integers, with the rounded matrix, the result is the same: no order of adding can change it."""
    matrix = np.array(numbers, np.float32).reshape(3, 3)
    image = np.random.default_rng(seed).integers(0, 256, (3, 2, width), dtype=np.uint8)
    largest = 256 * max(1.0, float(np.abs(matrix).sum(1).max()))
    steps = 2 ** (24 - math.ceil(math.log2(largest)))
    whole = np.rint(matrix.astype(np.float64) * steps).astype(np.int64)
    sums = np.einsum("ij,jhw->ihw", whole, image.astype(np.int64))
    expected = ((sums + steps // 2) // steps).clip(0, 255)
    assert np.array_equal(recolor(torch.from_numpy(image), matrix).numpy(), expected)


def test_upside_down_changes_no_other_draw() -> None:
    source = sample(100, 120, (10, 20, 60, 50))
    for seed in range(8):
        upright = augment(source, SIZE, Augment(), generator(seed))
        turned = augment(source, SIZE, Augment(flip_vertical=1.0), generator(seed))
        assert torch.equal(turned[0], upright[0].flip(-2)) and turned[3] == upright[3]
        x1, y1, x2, y2 = upright[1].unbind(1)
        assert torch.allclose(turned[1], torch.stack((x1, SIZE[0] - y2, x2, SIZE[0] - y1), 1), atol=1e-4)
    assert torch.equal(source.image, sample(100, 120, (10, 20, 60, 50)).image)  # untouched
    assert source.boxes.tolist() == [[10, 20, 60, 50]]
