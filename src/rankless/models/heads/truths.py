"""The ground truth of a batch, in the format that the losses use."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Minimum width and height of a box in pixels, so that the logarithm of its size is finite.
SMALLEST_SIDE = 0.1


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
