"""Multi-scale: multiples of 32 in reach, each as likely. Rectangular: nothing cut, no gray too many."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.augment.multi_scale import StepSizes, by_aspect, tight
from rankless.geometry.letterbox import letterbox

sides = st.integers(1, 40).map(lambda n: 32 * n)


def test_darknets_sizes() -> None:
    """From 320 to 608 around 448 in Redmon's YOLOv2 and v3; 416 / 1.4 = 297.1, 416 · 1.4 = 582.4."""
    sizes = StepSizes((416, 416), 0.4, 10, 0).choices()
    assert sizes == [(side, side) for side in range(320, 577, 32)]
    # The bounds themselves are in: 320 · 1.1 is not quite 352 in floating point.
    assert StepSizes((320, 320), 0.1, 10, 0).choices()[-1] == (352, 352)
    assert StepSizes((480, 480), 0.5, 10, 0).choices()[0] == (320, 320)


@given(st.tuples(sides, sides), st.floats(0, 2), st.integers(0, 500))
def test_every_size_is_a_multiple_in_reach_and_keeps_the_aspect(
    size: tuple[int, int], spread: float, step: int
) -> None:
    made = StepSizes(size, spread, 10, 3)
    choices = made.choices()
    assert size in choices and len(set(choices)) == len(choices) and made.of(step) in choices
    for found in choices:
        for side, wanted in zip(found, size, strict=True):
            assert side % 32 == 0
            assert wanted / (1 + spread) - 1e-3 <= side <= wanted * (1 + spread) + 1e-3
        scale = max(found) / max(size)
        # No other multiple in reach is nearer to the aspect.
        shorter = min(size)
        reach = [
            side
            for side in range(32, 4000, 32)
            if shorter / (1 + spread) - 1e-6 <= side <= shorter * (1 + spread) + 1e-6
        ]
        nearest = min(abs(side - shorter * scale) for side in reach)
        assert abs(min(found) - shorter * scale) == pytest.approx(nearest)
    assert choices[0] <= size <= choices[-1]


@pytest.mark.slow
def test_a_size_lasts_so_many_steps_and_all_are_as_likely() -> None:
    made = StepSizes((416, 416), 0.4, 10, 5)
    drawn = [made.of(step) for step in range(3600)]
    assert all(len(set(drawn[at : at + 10])) == 1 for at in range(0, 3600, 10))
    counts = Counter(drawn[::10])
    assert len(counts) == 9 and all(count == pytest.approx(40, abs=25) for count in counts.values())
    assert drawn[:200] != [StepSizes((416, 416), 0.4, 10, 6).of(step) for step in range(200)]


images = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=5)
inputs = st.tuples(st.integers(1, 8), st.integers(1, 8)).map(lambda n: (32 * n[0], 32 * n[1]))


def test_images_of_like_aspect_are_neighbors() -> None:
    sizes = np.array([[300, 400], [10, 10], [400, 300], [3, 4], [0, 0], [50, 200], [600, 800]])
    # 1/4, then the three of 3/4 by number, the two squares (one cannot be read), 4/3.
    assert by_aspect(sizes).tolist() == [5, 0, 3, 6, 1, 4, 2]
    assert by_aspect(sizes).dtype == np.int64


@given(images, inputs)
def test_the_input_holds_every_image_as_the_whole_one_would_show_it(
    sizes: list[tuple[int, int]], size: tuple[int, int]
) -> None:
    shape = tight(np.array(sizes), size)
    assert shape[0] % 32 == shape[1] % 32 == 0
    assert shape[0] <= size[0] and shape[1] <= size[1]
    reached = [0, 0]
    for height, width in sizes:
        image = torch.zeros(3, height, width, dtype=torch.uint8)
        usual, there = letterbox(image, size)
        found, here = letterbox(image, shape, size)
        assert found.shape == (3, *shape) and here.scale == there.scale
        shown = [(each == 0).all(0).nonzero() for each in (usual, found)]  # black on gray
        assert len(shown[0]) == len(shown[1])
        reached = [max(a, int(b)) for a, b in zip(reached, np.ptp(shown[1].numpy(), axis=0) + 1, strict=True)]
    assert all(side - 32 < most <= side for side, most in zip(shape, reached, strict=True))


def test_the_tight_input_is_a_multiple_of_32_on_each_side() -> None:
    assert tight(np.array([[193, 256]]), (128, 128)) == (96, 128)  # 96 and a half pixels high
    assert tight(np.array([[77, 77], [500, 500]]), (96, 96)) == (96, 96)
    assert tight(np.array([[0, 0]]), (96, 64)) == (96, 64)
    assert tight(np.array([[0, 0], [10, 40]]), (96, 96)) == (32, 96)
