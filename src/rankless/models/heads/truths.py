"""The ground truth of a batch, in the format that the losses use."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rankless.geometry.boxes import covered, iou

# Minimum width and height of a box in pixels, so that the logarithm of its size is finite.
SMALLEST_SIDE = 0.1
IGNORED_FROM = 0.5
"""A box is in a region to ignore if more than this fraction of its own area is inside the region.

COCO measures the overlap with a crowd in this way, and 0.5 is the lowest of its thresholds.
"""
# Pairs of boxes to compare at once; each needs about ten 4-byte temporaries.
_PAIRS_AT_ONCE = 2**21


class Truths(NamedTuple):
    """The ground-truth objects of a batch, in pixels of the network's input. Padding consists of zeros.

    Attributes:
        boxes: xyxy, (B, T, 4).
        center: x and y of the centers of the boxes, (B, T, 2).
        size: width and height of the boxes, at least ``SMALLEST_SIDE``, (B, T, 2).
        labels: class ids, int64, (B, T).
        valid: true for objects and false for padding, (B, T).
    """

    boxes: Tensor
    center: Tensor
    size: Tensor
    labels: Tensor
    valid: Tensor

    @classmethod
    def of(cls, boxes: Tensor, labels: Tensor, valid: Tensor, dtype: torch.dtype) -> Truths:
        """Create the ground truth from padded boxes (B, T, 4), xyxy, labels (B, T) and valid (B, T)."""
        boxes = torch.where(valid.unsqueeze(-1), boxes.to(dtype), 0)
        first, second = boxes[..., :2], boxes[..., 2:]
        return cls(
            boxes=boxes,
            center=(first + second) / 2,
            size=(second - first).clamp(min=SMALLEST_SIDE),
            labels=torch.where(valid, labels, 0),
            valid=valid,
        )

    @property
    def solid(self) -> Tensor:
        """The boxes (B, T, 4), xyxy, enlarged to sides of at least ``SMALLEST_SIDE``."""
        half = self.size / 2
        return torch.cat((self.center - half, self.center + half), -1)


def best_overlap(boxes: Tensor, others: Tensor, measure: Callable[[Tensor, Tensor], Tensor] = iou) -> Tensor:
    """Return the highest IoU, or another ``measure``, of each box with the others in its image, (B, P).

    The boxes, (B, P, 4), and the others, (B, T, 4), are in xyxy format.
    """
    images, count, _ = boxes.shape
    best = boxes.new_zeros(images, count)
    at_once = max(1, _PAIRS_AT_ONCE // max(1, images * count))
    for start in range(0, others.shape[1], at_once):
        some = others[:, start : start + at_once]
        best = torch.maximum(best, measure(boxes.unsqueeze(-2), some.unsqueeze(-3)).amax(-1))
    return best


def boxes_in_ignored(boxes: Tensor, ignored: Tensor) -> Tensor:
    """Return a mask (B, P) of the boxes (B, P, 4) in a region to ignore, given the regions (B, M, 4)."""
    return best_overlap(boxes, ignored.to(boxes.dtype), covered) > IGNORED_FROM


def points_in_ignored(points: Tensor, ignored: Tensor) -> Tensor:
    """Return a mask (B, P) of the points (P, 2), in pixels, inside a region to ignore (B, M, 4)."""
    first, second = ignored[:, None, :, :2], ignored[:, None, :, 2:]  # (B, 1, M, 2)
    at = points.to(ignored.dtype)[:, None]  # (P, 1, 2)
    return ((at >= first) & (at < second)).all(-1).any(-1)


def as_background(logits: Tensor, excused: Tensor, background: int | None) -> Tensor:
    """Replace the ``excused`` logits with constants whose loss as background is 0 and has no gradient.

    Args:
        logits: class logits, (..., C).
        excused: mask, (...).
        background: index of the logit of the background; None if the classes are independent.
    """
    constant = logits.new_full(logits.shape[-1:], -100.0)
    if background is not None:
        constant[background] = 100.0
    return torch.where(excused.unsqueeze(-1), constant, logits)
