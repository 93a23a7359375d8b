"""Decoding against the formulas written out in plain Python, and its inverse."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankless.models.heads.anchor_free.codec import (
    AnchorFreeHead,
    decode,
    decode_boxes,
    encode,
    neighbors,
    points,
)
from rankless.models.layers import LARGEST_LOG_SIZE
from support.reference_for_anchor_free import CLASSES, STRIDES, heads_of, make_raw, points_of


@pytest.mark.parametrize("bins", [0, 6])
def test_decode_is_the_papers_formula(bins):
    """YOLOX's from the middle of the cell, or the mean of each side's distribution."""
    raw = make_raw(bins, 2, 1)
    for number in range(2):
        expected = iter(points_of([one[number].tolist() for one in raw], STRIDES, bins))
        for one, head in zip(raw, heads_of(bins), strict=True):
            boxes, objectness, classes = decode(one, head)
            assert boxes.shape == (2, *one.shape[2:], 4) and objectness is None
            for box, logits in zip(boxes[number].view(-1, 4), classes[number].view(-1, CLASSES), strict=True):
                point = next(expected)
                assert box.tolist() == pytest.approx(point.box, rel=1e-12, abs=1e-12)
                assert logits.tolist() == point.logits


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
def test_bins_can_express_every_box_that_contains_its_point_and_is_within_reach(reach):
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
