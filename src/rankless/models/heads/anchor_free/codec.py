"""Encode and decode the outputs of anchor-free heads.

A head predicts one box and a score per class at the center of each cell, called the cell's point. There is no
objectness. The score of a class is the expected IoU of the box if an object of the class is present,
otherwise 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankless.geometry.boxes import to_cxcywh, to_xyxy
from rankless.models.layers import LARGEST_LOG_SIZE, wide

# Lower bound of a box's size in cells, so that its logarithm is finite.
_SMALLEST_SIZE = 1e-6


@dataclass(frozen=True)
class AnchorFreeHead:
    """An anchor-free head at one level.

    Attributes:
        stride: pixels of the input per cell.
        bins: the encoding of boxes. With 0, the head predicts the shift of a box's center from the point and
            the logarithms of its width and height, all in cells (YOLOX, Ge et al., 2021). A box need not
            contain its point. With n > 0, the head predicts the distances from the point to the left, top,
            right and bottom sides in cells, each as the mean of a distribution over 0, 1, … n - 1 (GFL, Li et
            al., 2020). A box contains its point and extends at most n - 1 cells to each side.
    """

    stride: int
    bins: int = 0

    def outputs(self, classes: int) -> int:
        """Return the number of channels in the head's output."""
        return 4 * max(self.bins, 1) + classes

    def detections(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Decode a raw output to boxes (B, P, 4), xyxy in input pixels, and scores (B, P, C)."""
        boxes, _, classes = decode(raw, self)
        return boxes.flatten(1, 2), classes.sigmoid().flatten(1, 2)


def split(raw: Tensor, head: AnchorFreeHead) -> tuple[Tensor, Tensor]:
    """Split the output of a head into boxes and classes, and convert it to float32 unless it is float64.

    Returns:
        The encoded boxes, (B, H, W, 4), or the logits of their distributions, (B, H, W, 4, bins), and the
        class logits, (B, H, W, C).
    """
    cells = wide(raw).permute(0, 2, 3, 1)
    numbers = 4 * max(head.bins, 1)
    box, classes = cells[..., :numbers], cells[..., numbers:]
    return box.unflatten(-1, (4, head.bins)) if head.bins else box, classes


def points(shape: tuple[int, int], head: AnchorFreeHead, like: Tensor) -> Tensor:
    """Return the centers (H, W, 2) of all cells in pixels, with the dtype and device of ``like``."""
    rows, columns = (torch.arange(side, dtype=like.dtype, device=like.device) + 0.5 for side in shape)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack((x, y), -1) * head.stride


def decode_boxes(box: Tensor, at: Tensor, head: AnchorFreeHead) -> Tensor:
    """Decode the boxes from :func:`split` at points ``at`` (..., 2) to xyxy in input pixels, (..., 4).

    Without bins, center = point + (t0, t1)·stride and size = exp(t2, t3)·stride, where t2 and t3 are clamped
    to ``LARGEST_LOG_SIZE``. With bins, a side is Σ k·softmax(t)_k strides away from the point.
    """
    if head.bins:
        reach = expectation(box) * head.stride
        return torch.cat((at - reach[..., :2], at + reach[..., 2:]), -1)
    center = at + box[..., :2] * head.stride
    size = box[..., 2:].clamp(max=LARGEST_LOG_SIZE).exp() * head.stride
    return to_xyxy(torch.cat((center, size), -1))


def expectation(logits: Tensor) -> Tensor:
    """Return the mean (...) of a distribution over 0, 1, … n - 1 with the given logits (..., n)."""
    # Autocast would compute a matrix product in half precision.
    return (logits.softmax(-1) * _bins(logits.shape[-1], logits)).sum(-1)


def neighbors(values: Tensor, bins: int) -> Tensor:
    """Return distributions (..., bins) over the two nearest bins, with the given means (...).

    The means are clamped to 0..bins - 1. Source: GFL (Li et al., 2020).
    """
    cut = values.clamp(0, bins - 1).unsqueeze(-1)
    return (1 - (cut - _bins(bins, cut)).abs()).clamp(min=0)


def encode(boxes: Tensor, at: Tensor, head: AnchorFreeHead) -> Tensor:
    """Encode boxes (..., 4), xyxy in pixels, relative to the points ``at`` (..., 2), like the head's output.

    With bins, distances are negative if the box does not contain its point, and may exceed bins - 1.
    """
    if head.bins:
        return torch.cat((at - boxes[..., :2], boxes[..., 2:] - at), -1) / head.stride
    cxcywh = to_cxcywh(boxes)
    shift = (cxcywh[..., :2] - at) / head.stride
    return torch.cat((shift, (cxcywh[..., 2:] / head.stride).clamp(min=_SMALLEST_SIZE).log()), -1)


def decode(raw: Tensor, head: AnchorFreeHead) -> tuple[Tensor, None, Tensor]:
    """Decode the output of a head to boxes and class logits, with None in place of objectness.

    The boxes (B, H, W, 4) are xyxy in input pixels, not clipped. The logits have the shape (B, H, W, C).
    """
    box, classes = split(raw, head)
    height, width = raw.shape[-2:]
    return decode_boxes(box, points((height, width), head, classes), head), None, classes


def _bins(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, dtype=like.dtype, device=like.device)
