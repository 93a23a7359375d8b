"""Assign ground-truth boxes to predictions, as targets of the YOLO losses.

All boxes are processed at once, including padding, with shapes that do not depend on the data. Therefore, the
host never waits for the device, and the result does not depend on the order of computation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankless.models.heads.truths import Truths
from rankless.models.heads.yolo.codec import YoloHead


@dataclass(frozen=True)
class Matches:
    """The ground-truth boxes that are assigned to the slots of one head.

    A slot is one anchor in one cell of one image. Several ground-truth boxes can share a slot.

    Attributes:
        hit: whether ground-truth box t is assigned to anchor a of this head, bool, (B, T, A).
        last: whether ground-truth box t is also the last one in its slot, bool, (B, T, A).
        columns, rows: the cell with the center of the ground-truth box, int64, (B, T).
        positive: whether the slot has a ground-truth box, bool, (B, A, H, W).
    """

    hit: Tensor
    last: Tensor
    columns: Tensor
    rows: Tensor
    positive: Tensor

    @property
    def slots(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Indices of the slots in a tensor (B, A, H, W, ...), which broadcast to (B, T, A)."""
        images, _, anchors = self.hit.shape
        device = self.hit.device
        return (
            torch.arange(images, device=device).view(-1, 1, 1),
            torch.arange(anchors, device=device),
            self.rows.unsqueeze(-1),
            self.columns.unsqueeze(-1),
        )


def assign(
    truths: Truths, head: YoloHead, shape: tuple[int, int], anchor_iou: float | None = None
) -> Matches:
    """Assign every ground-truth box to anchors of similar shape, in the cell that contains its center.

    The best anchor is the one, among the anchors of *all* heads, whose shape has the highest IoU with the box
    (the first one in a tie). YOLOv4 also assigns the box to all other anchors whose IoU exceeds
    ``anchor_iou``, by default the value of the head. ``shape`` is the (height, width) of the head's output in
    cells.
    """
    height, width = shape
    threshold = head.anchor_iou if anchor_iou is None else anchor_iou
    overlap = _shape_iou(truths.size, head.all_anchors(truths.size))  # (B, T, N)
    best = overlap.argmax(-1)
    hit = torch.stack([best == index for index in head.mask], -1)
    if threshold < 1:
        hit = hit | torch.stack([overlap[..., index] > threshold for index in head.mask], -1)
    hit = hit & truths.valid.unsqueeze(-1)  # (B, T, A)
    # A center on the right or lower border of the image belongs to the last cell.
    columns = (truths.center[..., 0] / head.stride).long().clamp(0, width - 1)
    rows = (truths.center[..., 1] / head.stride).long().clamp(0, height - 1)
    cell = rows * width + columns  # (B, T)
    last = hit & ~_taken_later(cell, hit)
    positive = _mark(hit, cell, height * width).view(*hit.shape[::2], height, width)
    return Matches(hit, last, columns, rows, positive)


def class_targets(truths: Truths, matches: Matches, classes: int) -> Tensor:
    """Return the target classes, bool (B, T, A, C), in the slot of ground-truth box t and anchor a.

    If several ground-truth boxes share a slot, its targets are the classes of all of them.
    """
    height, width = matches.positive.shape[-2:]
    entry = (matches.rows * width + matches.columns) * classes + truths.labels
    marks = _mark(matches.hit, entry, height * width * classes)
    return marks.view(*matches.positive.shape, classes)[matches.slots]


def slot_values(values: Tensor, matches: Matches) -> Tensor:
    """Return the largest of the ``values`` (B, T, A) in each slot, (B, A, H, W), or 0 if it has no box."""
    if not values.shape[1]:
        return values.new_zeros(matches.positive.shape)  # an empty tensor has no maximum
    width = matches.positive.shape[-1]
    cell = matches.rows * width + matches.columns  # (B, T)
    same = (cell.unsqueeze(2) == cell.unsqueeze(1)).unsqueeze(-1) & matches.hit.unsqueeze(1)  # (B, T, T, A)
    highest = torch.where(same, values.unsqueeze(1), 0).amax(2)  # (B, T, A)
    # All boxes in a cell write the same value (0 if none of them is a hit), so their order does not matter.
    index = cell.unsqueeze(1).expand(-1, matches.hit.shape[2], -1)  # (B, A, T)
    out = values.new_zeros(matches.positive.shape).flatten(2)
    return out.scatter_(2, index, highest.transpose(1, 2)).view_as(matches.positive)


def _shape_iou(size: Tensor, anchors: Tensor) -> Tensor:
    """Compute the IoU (B, T, N) of sizes (B, T, 2) and anchors (N, 2), as if their centers were equal."""
    common = torch.minimum(size.unsqueeze(-2), anchors).prod(-1)
    return common / (size.prod(-1, keepdim=True) + anchors.prod(-1) - common)


def _taken_later(cell: Tensor, hit: Tensor) -> Tensor:
    """Check whether a later box in the same ``cell`` (B, T) hits the same anchor, (B, T, A)."""
    count = cell.shape[1]
    later = torch.ones(count, count, dtype=torch.bool, device=cell.device).triu(1)
    same = (cell.unsqueeze(2) == cell.unsqueeze(1)) & later  # (B, T, T): [t, u], u after t
    return (same.unsqueeze(-1) & hit.unsqueeze(1)).any(2)


def _mark(hit: Tensor, entry: Tensor, entries: int) -> Tensor:
    """Scatter hits (B, T, A) to the given entries (B, T) of a new mask (B, A, entries)."""
    images, _, anchors = hit.shape
    # Misses write to an additional entry, which is cut off. The order does not matter, because all write
    # True.
    index = torch.where(hit, entry.unsqueeze(-1), entries).transpose(1, 2)  # (B, A, T)
    marks = torch.zeros(images, anchors, entries + 1, dtype=torch.bool, device=hit.device)
    return marks.scatter_(2, index, True)[..., :-1]
