"""Decoding against the formulas written out in plain Python, and its inverse."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankless.models.heads.anchor_free.codec import (
    LARGEST_LOG_SIZE,
    AnchorFreeHead,
    decode,
    decode_boxes,
    encode,
    neighbors,
    points,
    split,
)

CLASSES = 3


def raw_of(head, shape=(3, 5), dtype=torch.float64):
    rng = torch.Generator().manual_seed(1)
    return torch.randn(2, head.outputs(CLASSES), *shape, generator=rng, dtype=torch.float64).to(dtype)


def test_decode_without_bins_is_yolox_formula_from_the_middle_of_the_cell():
    head = AnchorFreeHead(16)
    raw = raw_of(head)
    boxes, objectness, classes = decode(raw, head)
    assert boxes.shape == (2, 3, 5, 4)
    assert objectness is None
    for b in range(2):
        for j in range(3):
            for i in range(5):
                tx, ty, tw, th, *tc = raw[b, :, j, i].tolist()
                cx, cy = (i + 0.5 + tx) * 16, (j + 0.5 + ty) * 16
                w, h = math.exp(tw) * 16, math.exp(th) * 16
                expected = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
                assert boxes[b, j, i].tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)
                assert classes[b, j, i].tolist() == tc


def test_decode_with_bins_is_the_mean_of_each_sides_distribution():
    head = AnchorFreeHead(8, bins=5)
    raw = raw_of(head)
    boxes, objectness, classes = decode(raw, head)
    assert objectness is None
    for b in range(2):
        for j in range(3):
            for i in range(5):
                numbers = raw[b, :, j, i].tolist()
                reach = []
                for side in range(4):
                    odds = [math.exp(t) for t in numbers[side * 5 : side * 5 + 5]]
                    reach.append(8 * sum(k * odd for k, odd in enumerate(odds)) / sum(odds))
                x, y = (i + 0.5) * 8, (j + 0.5) * 8
                expected = [x - reach[0], y - reach[1], x + reach[2], y + reach[3]]
                assert boxes[b, j, i].tolist() == pytest.approx(expected, rel=1e-12)
                assert classes[b, j, i].tolist() == numbers[20:]


sides = st.floats(0.01, 500)
starts = st.floats(-300, 600)


@given(x=starts, y=starts, w=sides, h=sides, stride=st.sampled_from([8, 16, 32]))
def test_without_bins_every_box_can_be_said_at_every_point(x, y, w, h, stride):
    head = AnchorFreeHead(stride)
    at = points((4, 6), head, torch.zeros(1, dtype=torch.float64))
    box = torch.tensor([x, y, x + w, y + h], dtype=torch.float64)
    back = decode_boxes(encode(box.expand(4, 6, 4), at, head), at, head)
    torch.testing.assert_close(back, box.expand(4, 6, 4), rtol=1e-9, atol=1e-7)


@given(st.tuples(*[st.floats(0, 7)] * 4))
def test_with_bins_every_box_that_holds_its_point_and_is_in_reach_can_be_said(reach):
    head = AnchorFreeHead(8, bins=8)
    at = points((2, 3), head, torch.zeros(1, dtype=torch.float64))
    left, top, right, bottom = (8 * r for r in reach)
    box = torch.stack((at[..., 0] - left, at[..., 1] - top, at[..., 0] + right, at[..., 1] + bottom), -1)
    distances = encode(box, at, head)
    torch.testing.assert_close(distances, torch.tensor(reach, dtype=torch.float64).expand(2, 3, 4))
    # Logits of the distribution over the two neighbors; e^-700 stands for nothing.
    logits = neighbors(distances, 8).log().clamp(min=-700)
    torch.testing.assert_close(decode_boxes(logits, at, head), box, rtol=1e-9, atol=1e-9)


@given(st.floats(-3, 12))
def test_neighbors_are_two_bins_whose_mean_is_the_value(value):
    row = neighbors(torch.tensor(value, dtype=torch.float64), 8)
    assert row.sum().item() == pytest.approx(1)
    assert (row > 0).sum() <= 2
    taken = row.nonzero().flatten()
    assert taken[-1] - taken[0] <= 1
    assert (row * torch.arange(8)).sum().item() == pytest.approx(min(max(value, 0), 7))


def test_a_box_without_sides_is_encoded_finitely():
    head = AnchorFreeHead(16)
    at = points((1, 1), head, torch.zeros(1))
    assert encode(torch.tensor([3.0, 4.0, 3.0, 4.0]).view(1, 1, 4), at, head).isfinite().all()


@pytest.mark.parametrize("bins", [0, 6])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_and_runaway_numbers_stay_finite(dtype, bins):
    head = AnchorFreeHead(32, bins)
    raw = torch.full((1, head.outputs(2), 1, 1), 1e4, dtype=dtype)
    boxes, _, classes = decode(raw, head)
    assert boxes.dtype == classes.dtype == torch.float32
    if not bins:
        assert (boxes[..., 2] - boxes[..., 0]).item() == pytest.approx(
            32 * math.exp(LARGEST_LOG_SIZE), rel=1e-2
        )
    assert (boxes**4).isfinite().all()  # even squared areas


@pytest.mark.parametrize("bins", [0, 4])
def test_bf16_is_decoded_in_float32_even_under_autocast(bins):
    head = AnchorFreeHead(8, bins)
    raw = raw_of(head, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        boxes, _, _ = decode(raw, head)
    assert torch.equal(boxes, decode(raw.float(), head)[0])


@pytest.mark.parametrize("bins", [0, 4])
def test_split_does_not_depend_on_the_memory_format(bins):
    head = AnchorFreeHead(8, bins)
    raw = raw_of(head)
    last = raw.contiguous(memory_format=torch.channels_last)
    for one, other in zip(split(raw, head), split(last, head), strict=True):
        assert torch.equal(one, other)
