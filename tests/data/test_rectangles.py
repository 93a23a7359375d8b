"""Rectangular inputs: every image as large as ever, nothing cut, no row of gray too many."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.datasets.rectangles import by_aspect, tight
from rankless.geometry.letterbox import letterbox

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


def test_squares_have_the_input_they_always_had_and_nothing_the_whole() -> None:
    image = torch.randint(0, 256, (3, 77, 77), dtype=torch.uint8)
    assert tight(np.array([[77, 77], [500, 500]]), (96, 96)) == (96, 96)
    usual, there = letterbox(image, (96, 96))
    found, here = letterbox(image, (96, 96), (96, 96))
    assert torch.equal(usual, found) and here == there
    assert tight(np.array([[0, 0]]), (96, 64)) == (96, 64)
    assert tight(np.array([[0, 0], [10, 40]]), (96, 96)) == (32, 96)
