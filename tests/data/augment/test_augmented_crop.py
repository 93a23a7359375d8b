"""Crops that cut no box."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.augment.augmented import cropped
from rankless.structures import Sample


def numbered(height: int, width: int, boxes: torch.Tensor) -> Sample:
    """An image whose pixels tell where they are."""
    y, x = np.mgrid[:height, :width]
    image = torch.from_numpy(np.stack([x % 256, y % 256, x // 256 * 16 + y // 256]).astype(np.uint8))
    return Sample(image, boxes, torch.arange(len(boxes)))


def corner_of(image: torch.Tensor) -> tuple[int, int]:
    x, y, more = image[:, 0, 0].tolist()
    return x + 256 * (more // 16), y + 256 * (more % 16)


@given(
    seed=st.integers(0, 10**6),
    height=st.integers(1, 400),
    width=st.integers(1, 400),
    count=st.integers(0, 12),
    smallest=st.floats(0.01, 1),
)
def test_a_box_is_whole_or_not_there(seed: int, height: int, width: int, count: int, smallest: float) -> None:
    rng = np.random.default_rng(seed)
    sides = np.array([width, height])
    first = rng.uniform(0, 0.9, (count, 2)) * sides
    last = np.minimum(first + rng.uniform(0.01, 0.3, (count, 2)) * sides, sides)
    boxes = torch.from_numpy(np.concatenate((first, last), 1)).float()
    source = numbered(height, width, boxes)
    part = cropped(source, smallest, np.random.default_rng(seed))
    rows, columns = part.image.shape[-2:]
    left, top = corner_of(part.image)
    assert torch.equal(part.image, source.image[:, top : top + rows, left : left + columns])
    assert rows * columns >= smallest * height * width - 1e-6
    moved = boxes - torch.tensor([left, top, left, top]).float()
    assert torch.allclose(part.boxes, moved[part.labels], atol=1e-4)
    limits = torch.tensor([columns, rows]).float()
    assert bool((part.boxes[:, :2] >= -1e-4).all()) and bool((part.boxes[:, 2:] <= limits + 1e-4).all())
    gone = torch.tensor([label not in part.labels for label in range(count)], dtype=torch.bool)
    # What is gone lies wholly outside.
    outside = (moved[gone, :2] >= limits - 1e-4).any(1) | (moved[gone, 2:] <= 1e-4).any(1)
    assert bool(outside.all())


def test_crops_are_as_large_as_they_are_called_and_anywhere() -> None:
    source = numbered(200, 300, torch.zeros(0, 4))
    shares, places = [], []
    for seed in range(150):
        part = cropped(source, 0.2, np.random.default_rng(seed))
        rows, columns = part.image.shape[-2:]
        shares.append(rows * columns / 60000)
        assert 0.74 < (columns / 300) / (rows / 200) < 1.36
        places.append(corner_of(part.image))
    assert 0.2 <= min(shares) < 0.23 and 0.95 < max(shares) <= 1 and abs(np.mean(shares) - 0.6) < 0.06
    assert len(set(places)) > 100
