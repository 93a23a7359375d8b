"""Decoding against the formulas written out in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from rankless.models.heads.yolo.codec import YoloHead, decode
from rankless.models.layers import LARGEST_LOG_SIZE
from support.loss_cases import sigmoid

ANCHORS = ((10.0, 14.0), (23.0, 27.0), (37.0, 58.0), (81.0, 82.0))


@pytest.mark.parametrize("new_coords", [False, True])
@pytest.mark.parametrize("scale_xy", [1.0, 1.05, 2.0])
def test_decode_is_the_papers_formula(scale_xy, new_coords):
    head = YoloHead(ANCHORS, mask=(3, 1), stride=16, scale_xy=scale_xy, new_coords=new_coords)
    raw = torch.randn(2, 2 * 8, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    boxes, objectness, classes = decode(raw, head)
    assert boxes.shape == (2, 2, 3, 5, 4)
    assert objectness.shape == (2, 2, 3, 5)
    assert classes.shape == (2, 2, 3, 5, 3)
    for b in range(2):
        for a, (pw, ph) in enumerate((ANCHORS[3], ANCHORS[1])):
            for j in range(3):
                for i in range(5):
                    tx, ty, tw, th, to, *tc = raw[b, a * 8 : a * 8 + 8, j, i].tolist()
                    cx = (i + scale_xy * sigmoid(tx) - (scale_xy - 1) / 2) * 16
                    cy = (j + scale_xy * sigmoid(ty) - (scale_xy - 1) / 2) * 16
                    w = (2 * sigmoid(tw)) ** 2 * pw if new_coords else math.exp(tw) * pw
                    h = (2 * sigmoid(th)) ** 2 * ph if new_coords else math.exp(th) * ph
                    expected = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
                    assert boxes[b, a, j, i].tolist() == pytest.approx(expected, rel=1e-12)
                    assert objectness[b, a, j, i].item() == to
                    assert classes[b, a, j, i].tolist() == tc


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_and_runaway_sizes_stay_finite(dtype):
    head = YoloHead(ANCHORS, mask=(3,), stride=32)
    raw = torch.full((1, 6, 1, 1), 1e4, dtype=dtype)
    boxes, _, _ = decode(raw, head)
    assert boxes.dtype == torch.float32
    widths = boxes[..., 2] - boxes[..., 0]
    assert widths.item() == pytest.approx(81 * math.exp(LARGEST_LOG_SIZE), rel=1e-5)
    assert (boxes**4).isfinite().all()  # even squared areas
