"""Copy-paste: objects keep their look and their size on the input, and cover little of what is there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.augment.copy_paste import MOST, copy_paste
from rankless.structures import Sample

SIZE = (128, 128)


def drawn(seed: int, height: int, width: int, color: int, count: int) -> Sample:
    rng = np.random.default_rng(seed)
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    boxes = []
    for _ in range(count):
        x, y = int(rng.integers(width - 8)), int(rng.integers(height - 8))
        right, bottom = x + int(rng.integers(4, 40)), y + int(rng.integers(4, 40))
        boxes.append([x, y, min(right, width), min(bottom, height)])
        image[color, y:bottom, x:right] = 255
    return Sample(image, torch.tensor(boxes).float().reshape(-1, 4), torch.full((count,), color))


def black(height: int, width: int, box: list[float]) -> Sample:
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    return Sample(image, torch.tensor([box], dtype=torch.float32), torch.tensor([1]))


@given(seed=st.integers(0, 10**6), count=st.integers(0, 20), others=st.integers(0, 20))
def test_pasted_objects_are_in_their_boxes_and_cover_little(seed: int, count: int, others: int) -> None:
    rng = np.random.default_rng(seed)
    sides = rng.integers(20, 200, 4).tolist()
    one, other = drawn(seed, *sides[:2], 0, count), drawn(seed + 1, *sides[2:], 1, others)
    before = one.image.clone()
    made = copy_paste(one, other, SIZE, rng)
    assert torch.equal(one.image, before)
    assert torch.equal(made.boxes[:count], one.boxes) and made.labels[:count].eq(0).all()  # all stay
    pasted = made.boxes[count:]
    assert made.labels[count:].eq(1).all() and len(pasted) <= min(MOST, others)
    limits = torch.tensor(one.image.shape[:0:-1])
    assert bool((pasted[:, :2] >= 0).all()) and bool((pasted[:, 2:] <= limits + 1e-3).all())
    # Nothing is changed outside the pasted boxes (which are of whole pixels), and all of it inside.
    touched = torch.zeros(one.image.shape[-2:], dtype=torch.bool)
    for x1, y1, x2, y2 in pasted.round().int().tolist():
        touched[y1:y2, x1:x2] = True
    assert torch.equal(made.image[:, ~touched], before[:, ~touched])
    assert bool((made.image[1][touched] == 255).all())
    for number, rectangle in enumerate(pasted):
        known = made.boxes[: count + number]
        shared = (
            (known[:, 2:].minimum(rectangle[2:]) - known[:, :2].maximum(rectangle[:2])).clamp(min=0).prod(1)
        )
        assert bool((shared <= 0.3001 * (known[:, 2:] - known[:, :2]).prod(1)).all())


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_an_object_is_as_large_on_the_input_as_in_its_own_image(factor: int) -> None:
    one = drawn(0, 100, 160, 0, 0)
    other = black(100 * factor, 160 * factor, [side * factor for side in (20, 10, 50, 30)])
    found = [copy_paste(one, other, SIZE, np.random.default_rng(seed)).boxes for seed in range(20)]
    pasted = torch.cat(found)
    assert 3 < len(pasted) < 17
    assert torch.allclose(pasted[:, 2:] - pasted[:, :2], torch.tensor([30.0, 20]), atol=1e-3)


def test_a_box_between_pixels_stays_between_them() -> None:
    other = black(50, 50, [3.25, 4.5, 9.75, 8.125])
    for seed in range(9):
        made = copy_paste(drawn(0, 50, 50, 0, 0), other, SIZE, np.random.default_rng(seed))
        if len(made.boxes):
            assert torch.allclose(made.boxes[0] % 1, torch.tensor([0.25, 0.5, 0.75, 0.125]))


def test_what_is_too_large_or_finds_no_place_is_not_pasted() -> None:
    full, wide = black(50, 50, [0, 0, 50, 50]), black(40, 80, [0, 0, 80, 20])
    tall = drawn(0, 80, 40, 0, 0)
    for seed in range(9):
        assert len(copy_paste(full, full, SIZE, np.random.default_rng(seed)).boxes) == 1
        assert len(copy_paste(tall, wide, SIZE, np.random.default_rng(seed)).boxes) == 0
