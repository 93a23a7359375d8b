"""The ground truth of a batch, in the form that the losses of all heads use."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Thinner boxes are treated as this many pixels thick, so that the logarithm of their size is finite.
SMALLEST_SIDE = 0.1


@dataclass(frozen=True)
class Truths:
    """The ground-truth objects, in pixels of the network's input; padded entries are zeros.

    Attributes:
        boxes: the objects' boxes, xyxy, (B, T, 4).
        center: x and y of the boxes' centers, (B, T, 2).
        size: the boxes' width and height, at least ``SMALLEST_SIDE``, (B, T, 2).
        labels: the objects' class ids, int64, (B, T).
        valid: true for objects and false for padding, bool, (B, T).
    """

    boxes: Tensor
    center: Tensor
    size: Tensor
    labels: Tensor
    valid: Tensor

    @classmethod
    def of(cls, boxes: Tensor, labels: Tensor, valid: Tensor, dtype: torch.dtype) -> Truths:
        """Create an instance from padded targets: boxes (B, T, 4) xyxy, labels (B, T) and valid (B, T)."""
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
        """The boxes (B, T, 4) xyxy with sides of at least ``SMALLEST_SIDE``."""
        half = self.size / 2
        return torch.cat((self.center - half, self.center + half), -1)
