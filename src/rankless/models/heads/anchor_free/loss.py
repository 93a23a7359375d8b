"""The loss of anchor-free heads, summed over the points of a micro-batch.

The target of a class score is the quality of the point's box (binary cross-entropy with a soft target), so a
score predicts how good its box is. The boxes of positive points are compared with the ground truth. The loss
is computed in float32, regardless of the network's precision.

Sources: TOOD (Feng et al., 2021) and YOLOX (Ge et al., 2021) for the positives, GFL (Li et al., 2020) for the
soft target and the distributions of distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from rankless.geometry import boxes
from rankless.models.heads.anchor_free.assign import Predicted, Targets, assign
from rankless.models.heads.anchor_free.codec import (
    AnchorFreeHead,
    decode_boxes,
    encode,
    neighbors,
    points,
    split,
)
from rankless.models.heads.truths import Truths, points_in_ignored
from rankless.recipe import loss_kinds
from rankless.structures import DetectionBatch, LossSum


@dataclass(frozen=True)
class AnchorFreeLoss:
    """The loss function of anchor-free heads."""

    options: loss_kinds.AnchorFreeLoss = field(default_factory=loss_kinds.AnchorFreeLoss)

    def __call__(
        self, raw: Sequence[Tensor], heads: Sequence[AnchorFreeHead], batch: DetectionBatch
    ) -> LossSum:
        """Compute the loss of one micro-batch.

        Args:
            raw: the outputs of the model, one (B, 4 * max(bins, 1) + C, H, W) per head.
            heads: the heads in the same order, all with the same number of bins.
            batch: the targets; its images are not read.

        Returns:
            The sum over all points; the count, which is the total weight of the positive points; and the
            parts ``box``, ``classes`` and, for heads with bins, ``dfl``, which add up to the sum.
        """
        numbers, logits, at, strides = _flattened(raw, heads)
        placed = torch.cat(
            [decode_boxes(n, a, head) for n, a, head in zip(numbers, at, heads, strict=True)], 1
        )
        with torch.no_grad():
            truths = Truths.of(batch.boxes, batch.labels, batch.valid, placed.dtype)
            # With bins, a box contains its point, so points outside an object are not candidates.
            radius = 0.5 if heads[0].bins else 1.0
            predicted = Predicted(placed.detach(), logits.detach(), torch.cat(at), strides, radius)
            targets = assign(self.options.assign, predicted, truths)
            counted = None
            if batch.ignored is not None:
                counted = targets.positive | ~points_in_ignored(predicted.points, batch.ignored)
        parts = {
            "box": self.options.box * self._box(placed, targets),
            "classes": self.options.classes * self._classes(logits, targets, counted),
        }
        if heads[0].bins:
            parts["dfl"] = self.options.dfl * _distributions(numbers, at, heads, targets)
        return LossSum(
            sum=torch.stack(list(parts.values())).sum(),
            count=targets.weight.sum(),
            parts={name: part.detach() for name, part in parts.items()},
        )

    def _box(self, placed: Tensor, targets: Targets) -> Tensor:
        """Sum weight · (1 - similarity) over the positive points, for boxes (B, P, 4)."""
        positive = targets.positive.unsqueeze(-1)
        # Elsewhere, a unit box is compared with itself, so that neither infinity nor NaN can occur.
        unit = _unit_box(placed)
        similarity = boxes.SIMILARITIES[self.options.box_loss](
            torch.where(positive, placed, unit), torch.where(positive, targets.boxes, unit)
        )
        return torch.where(targets.positive, targets.weight * (1 - similarity), 0).sum()

    def _classes(self, logits: Tensor, targets: Targets, counted: Tensor | None) -> Tensor:
        """Sum the cross-entropies over the points in the mask ``counted`` (B, P), or over all points."""
        with torch.no_grad():
            numbers = torch.arange(logits.shape[-1], device=logits.device)
            one_hot = (targets.labels.unsqueeze(-1) == numbers).to(logits.dtype)
            smooth = one_hot * (1 - self.options.smoothing) + self.options.smoothing / 2
            wanted = targets.quality.unsqueeze(-1) * smooth
        if counted is None:
            return F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
        loss = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        return torch.where(counted.unsqueeze(-1), loss, 0).sum()


def _flattened(
    raw: Sequence[Tensor], heads: Sequence[AnchorFreeHead]
) -> tuple[list[Tensor], Tensor, list[Tensor], Tensor]:
    """Return boxes per head (B, h, 4, …), logits (B, P, C), points per head (h, 2), and strides (P,)."""
    numbers, logits, at, strides = [], [], [], []
    for one, head in zip(raw, heads, strict=True):
        box, classes = split(one, head)
        height, width = one.shape[-2:]
        numbers.append(box.flatten(1, 2))
        logits.append(classes.flatten(1, 2))
        at.append(points((height, width), head, classes).flatten(0, 1))
        strides.append(classes.new_full((height * width,), head.stride))
    return numbers, torch.cat(logits, 1), at, torch.cat(strides)


def _distributions(
    numbers: Sequence[Tensor], at: Sequence[Tensor], heads: Sequence[AnchorFreeHead], targets: Targets
) -> Tensor:
    """Sum weight · cross-entropy with the nearest bins, averaged over the four sides (GFL's DFL)."""
    entropy, start = [], 0
    for logits, here, head in zip(numbers, at, heads, strict=True):
        boxes_here = targets.boxes[:, start : start + here.shape[0]]
        wanted = neighbors(encode(boxes_here, here, head), head.bins)  # (B, h, 4, bins)
        entropy.append(-(wanted * logits.log_softmax(-1)).sum(-1).mean(-1))
        start += here.shape[0]
    return (targets.weight * torch.cat(entropy, 1)).sum()


def _unit_box(like: Tensor) -> Tensor:
    """Create the box from (0, 0) to (1, 1) on the device, because copying it would stall the GPU."""
    return (torch.arange(4, device=like.device) >= 2).to(like.dtype)
