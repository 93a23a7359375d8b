"""Encode and decode the outputs of anchor-free heads: points, distances and boxes.

At the center of each cell (its point), a head predicts one box and a score per class. There is no
objectness: the score of a class is the expected IoU of the box if the class is present, else 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankless.geometry.boxes import to_cxcywh, to_xyxy

# exp(8) = 2981 cells are far more than any image has, and their square is far from overflowing float32, so a
# diverging run shows huge boxes instead of infinities and NaN.
LARGEST_LOG_SIZE = 8.0
# In cells, so that the logarithm of an empty box is finite.
_SMALLEST_SIZE = 1e-6


@dataclass(frozen=True)
class AnchorFreeHead:
    """An anchor-free head at one level.

    Attributes:
        stride: pixels of the input per cell.
        bins: with 0, a box is the shift of its center from the point and the logarithms of its width and
            height, all in cells (YOLOX, Ge et al., 2021). A box can lie anywhere, even beside its point, as
            small boxes often do.
            With n, a box is the distances from the point to its left, upper, right and lower side in cells,
            each the expectation of a distribution over 0, 1, … n - 1 (GFL, Li et al., 2020). Such a box
            contains its point and extends at most n - 1 cells to each side.
    """

    stride: int
    bins: int = 0

    def outputs(self, classes: int) -> int:
        """Return the number of channels in the head's output."""
        return 4 * max(self.bins, 1) + classes

    def detections(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Decode a raw output to boxes (B, P, 4) xyxy in pixels of the input, and scores (B, P, C)."""
        boxes, _, classes = decode(raw, self)
        return boxes.flatten(1, 2), classes.sigmoid().flatten(1, 2)


def split(raw: Tensor, head: AnchorFreeHead) -> tuple[Tensor, Tensor]:
    """Split a head's output into boxes and classes, converted to float32 unless it is float64.

    Args:
        raw: the output, (B, 4 * max(bins, 1) + C, H, W), of any floating dtype.
        head: the head that produced it.

    Returns:
        The encoded boxes, (B, H, W, 4), or with bins their logits, (B, H, W, 4, bins); and the class logits,
        (B, H, W, C).
    """
    wide = (raw if raw.dtype == torch.float64 else raw.float()).permute(0, 2, 3, 1)
    numbers = 4 * max(head.bins, 1)
    box, classes = wide[..., :numbers], wide[..., numbers:]
    return box.unflatten(-1, (4, head.bins)) if head.bins else box, classes


def points(shape: tuple[int, int], head: AnchorFreeHead, like: Tensor) -> Tensor:
    """Return the cells' centers (x, y) in pixels, (H, W, 2), with the dtype and device of ``like``."""
    rows, columns = (torch.arange(side, dtype=like.dtype, device=like.device) + 0.5 for side in shape)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack((x, y), -1) * head.stride


def decode_boxes(box: Tensor, at: Tensor, head: AnchorFreeHead) -> Tensor:
    """Decode boxes to pixels.

    Without bins: center = point + (t0, t1)·stride, size = exp(t2, t3)·stride, with t2 and t3 clamped
    to ``LARGEST_LOG_SIZE``. With bins: a side is Σ k·softmax(t)_k strides away from the point.

    Args:
        box: encoded boxes, (..., 4) or (..., 4, bins), as :func:`split` returns them.
        at: the points in pixels, (..., 2).
        head: the head, for its stride and bins.

    Returns:
        Boxes (..., 4), xyxy in pixels of the network's input.
    """
    if head.bins:
        reach = expectation(box) * head.stride
        return torch.cat((at - reach[..., :2], at + reach[..., 2:]), -1)
    center = at + box[..., :2] * head.stride
    size = box[..., 2:].clamp(max=LARGEST_LOG_SIZE).exp() * head.stride
    return to_xyxy(torch.cat((center, size), -1))


def expectation(logits: Tensor) -> Tensor:
    """Return the mean (...) of a distribution over 0, 1, … n - 1, given by logits of shape (..., n)."""
    # Not a matrix product, which autocast would compute in half precision.
    return (logits.softmax(-1) * _bins(logits.shape[-1], logits)).sum(-1)


def neighbors(values: Tensor, bins: int) -> Tensor:
    """Return the distribution over a value's two nearest bins whose mean is the value (GFL, Li et al., 2020).

    Args:
        values: values of any shape (...), which are clamped to 0..bins - 1.
        bins: number of bins.

    Returns:
        The distributions, (..., bins); each row sums to 1.
    """
    cut = values.clamp(0, bins - 1).unsqueeze(-1)
    return (1 - (cut - _bins(bins, cut)).abs()).clamp(min=0)


def encode(boxes: Tensor, at: Tensor, head: AnchorFreeHead) -> Tensor:
    """Encode boxes; this is the inverse of :func:`decode_boxes`. With bins, boxes become four distances.

    Args:
        boxes: xyxy in pixels, (..., 4).
        at: the points in pixels, (..., 2).
        head: the head, for its stride and bins.

    Returns:
        Shift and log size, or left, upper, right and lower distance, all in cells, of shape (..., 4). A
        distance is negative where the box does not contain its point, and may exceed bins - 1.
    """
    if head.bins:
        return torch.cat((at - boxes[..., :2], boxes[..., 2:] - at), -1) / head.stride
    cxcywh = to_cxcywh(boxes)
    shift = (cxcywh[..., :2] - at) / head.stride
    return torch.cat((shift, (cxcywh[..., 2:] / head.stride).clamp(min=_SMALLEST_SIZE).log()), -1)


def decode(raw: Tensor, head: AnchorFreeHead) -> tuple[Tensor, None, Tensor]:
    """Decode a head's output to boxes and logits.

    Args:
        raw: the output, (B, 4 * max(bins, 1) + C, H, W), of any floating dtype; it is decoded in float32.
        head: the head that produced it.

    Returns:
        Boxes (B, H, W, 4) xyxy in pixels of the network's input, not clipped; None, as there is no
        objectness; class logits (B, H, W, C).
    """
    box, classes = split(raw, head)
    height, width = raw.shape[-2:]
    return decode_boxes(box, points((height, width), head, classes), head), None, classes


def _bins(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, dtype=like.dtype, device=like.device)
