"""Assign points to ground-truth boxes for anchor-free heads, by SimOTA or by task alignment.

Both rules use the current predictions. They compute all pairs of boxes and points at once, with shapes that
do not depend on the data, so the host never waits for the device. Boxes are sorted first, and ties are broken
by the index of the point, so the result does not depend on the order of the boxes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rankless.geometry.boxes import pairwise_iou
from rankless.models.heads.truths import Truths

Assignment = Literal["simota", "task-aligned"]

# Task alignment: score^α · IoU^β. The paper uses α = 1, β = 6 and 13 points. With α = 0.5 and 10 points, the
# assignment depends less on the classes, which an untrained network cannot predict yet.
ALPHA = 0.5
BETA = 6.0
POINTS_PER_TRUTH = 10
# Lower bound of the IoU, so that its logarithm is finite.
_SMALLEST_OVERLAP = 1e-6

# SimOTA, as in YOLOX.
CENTER_RADIUS = 2.5
OVERLAPS_COUNTED = 10
OVERLAP_COST = 3.0
OUTSIDE_COST = 1e5
_SIMOTA_EPS = 1e-8

# Pairs of ground-truth boxes and points to compare at once; each needs about fifteen 4-byte temporaries.
_PAIRS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Predicted:
    """The predictions at the points of all heads, without gradients.

    Attributes:
        boxes: xyxy in pixels, (B, P, 4).
        logits: class logits, (B, P, C).
        points: x and y in pixels, (P, 2).
        strides: pixels per cell at each point, (P,).
        radius: points within this many cells of the center of a ground-truth box are candidates for task
            alignment, even outside the box. With a radius of 1, a box smaller than a cell has about four
            candidates per head; with 0.5, it has one, the nearest point.
    """

    boxes: Tensor
    logits: Tensor
    points: Tensor
    strides: Tensor
    radius: float = 1.0


class Targets(NamedTuple):
    """The training targets of the points.

    Attributes:
        positive: whether the point is assigned to a ground-truth box, (B, P).
        boxes: the assigned ground-truth box, xyxy in pixels, arbitrary if not positive, (B, P, 4).
        labels: label of the assigned box, int64, (B, P).
        quality: target score for this label, in 0..1; 0 if not positive, (B, P).
        weight: weight of the box in the loss; 0 if not positive, (B, P).
    """

    positive: Tensor
    boxes: Tensor
    labels: Tensor
    quality: Tensor
    weight: Tensor


def assign(rule: Assignment, predicted: Predicted, truths: Truths) -> Targets:
    """Assign at most one ground-truth box to each of the points (B, P)."""
    truths = in_order(truths)
    count, points, _ = predicted.boxes.shape
    at_once = max(1, _PAIRS_AT_ONCE // (truths.valid.shape[1] * points))
    parts = []
    for start in range(0, count, at_once):
        some = slice(start, start + at_once)
        found = replace(predicted, boxes=predicted.boxes[some], logits=predicted.logits[some])
        parts.append(_RULES[rule](found, Truths(*(each[some] for each in truths))))
    return Targets(*(torch.cat(each) for each in zip(*parts, strict=True)))


def in_order(truths: Truths) -> Truths:
    """Sort ground-truth boxes by coordinates and label. If there are none, add an invalid box."""
    boxes = truths.solid  # nothing can overlap a box without area
    labels, valid = truths.labels, truths.valid
    if not labels.shape[1]:
        boxes, labels, valid = F.pad(boxes, (0, 0, 0, 1)), F.pad(labels, (0, 1)), F.pad(valid, (0, 1))
    order = labels.argsort(dim=1, stable=True)
    for side in reversed(range(4)):
        order = order.gather(1, boxes[..., side].gather(1, order).argsort(dim=1, stable=True))
    return Truths.of(
        boxes.gather(1, order.unsqueeze(-1).expand_as(boxes)),
        labels.gather(1, order),
        valid.gather(1, order),
        boxes.dtype,
    )


def task_aligned(predicted: Predicted, truths: Truths) -> Targets:
    """Assign each ground-truth box to the points that predict it best (TOOD, Feng et al., 2021).

    The candidates for a ground-truth box are the points inside it or, for a small box, near its center. Of
    these, at most ``POINTS_PER_TRUTH`` with the highest metric, score^α · IoU^β, become positive. A point
    that is chosen for several boxes is assigned to the box with the largest IoU. The weight of a point is its
    metric divided by the highest metric for the same box. The quality is the weight times the highest IoU for
    the same box.

    In the paper, the weight equals the quality. A box whose IoUs are still low, usually a small box, would
    then have almost no weight and be learned late or never, and the loss of a step with only such boxes would
    be divided by almost 0.

    ``truths`` must be sorted by :func:`in_order`.
    """
    overlap = pairwise_iou(truths.boxes, predicted.boxes)  # (B, T, P)
    # This is the logarithm of the metric, because IoU^6 would leave the range of float32.
    metric = ALPHA * F.logsigmoid(_logits_of_labels(predicted, truths))
    metric = metric + BETA * overlap.clamp(min=_SMALLEST_OVERLAP).log()
    candidate = _within(predicted, truths, predicted.radius) & truths.valid.unsqueeze(-1)
    metric = metric.masked_fill(~candidate, -torch.inf)
    count = torch.full_like(truths.labels, min(POINTS_PER_TRUTH, metric.shape[-1]))
    chosen = candidate & highest(metric, count, POINTS_PER_TRUTH)
    owner, won = _one_truth(chosen, overlap)
    best_metric = metric.masked_fill(~won, -torch.inf).amax(-1, keepdim=True)
    best_overlap = overlap.masked_fill(~won, 0).amax(-1, keepdim=True)
    # Outside `won`, this is the exponential of infinity minus infinity, which is replaced with 0.
    weight = (metric - best_metric).exp().masked_fill(~won, 0)  # (B, T, P)
    return _targets(truths, owner, won, (weight * best_overlap).amax(1), weight.amax(1))


def simota(predicted: Predicted, truths: Truths) -> Targets:
    """Assign each ground-truth box to the points with the lowest cost (SimOTA; YOLOX, Ge et al., 2021).

    Candidates are the points inside a box or within ``CENTER_RADIUS`` cells of its center. The cost is the
    cross-entropy of the classes minus 3·log(IoU). It is far higher for points that meet only one of these
    conditions. The number of points for a box is the sum of its ten highest IoUs. A point that is chosen for
    several boxes is assigned to the box with the lowest cost. The quality is the IoU, and all weights are 1.
    Unlike in the paper, the cost has no objectness term, because the heads predict no objectness.

    ``truths`` must be sorted by :func:`in_order`.
    """
    overlap = pairwise_iou(truths.boxes, predicted.boxes)  # (B, T, P)
    inside = _within(predicted, truths, 0.0)
    central = _within(predicted, truths, CENTER_RADIUS, reach=0.0)
    # The cross-entropy with a one-hot target, summed over the classes.
    classes = F.softplus(predicted.logits).sum(-1).unsqueeze(1) - _logits_of_labels(predicted, truths)
    cost = classes - OVERLAP_COST * (overlap + _SIMOTA_EPS).log()
    cost = cost + OUTSIDE_COST * ~(inside & central)
    candidate = (inside | central) & truths.valid.unsqueeze(-1)
    most = min(OVERLAPS_COUNTED, cost.shape[-1])
    count = overlap.masked_fill(~candidate, 0).topk(most).values.sum(-1).long().clamp(1, most)  # (B, T)
    cheap = (-cost).masked_fill(~candidate, -torch.inf)
    chosen = candidate & highest(cheap, count, OVERLAPS_COUNTED)
    owner, won = _one_truth(chosen, cheap)
    quality = overlap.masked_fill(~won, 0).amax(1)
    return _targets(truths, owner, won, quality, won.any(1).to(quality.dtype))


_RULES: dict[Assignment, Callable[[Predicted, Truths], Targets]] = {
    "simota": simota,
    "task-aligned": task_aligned,
}


def highest(values: Tensor, count: Tensor, most: int) -> Tensor:
    """Return a mask of the ``count`` largest ``values`` (B, T, P) in each row; in a tie, the first ones.

    Each ``count``, int64 (B, T), is in 1..min(most, P).
    """
    top = values.topk(min(most, values.shape[-1])).values
    # Among equal values, `topk` may choose any, but the smallest value that it returns is well-defined.
    last = top.gather(-1, count.unsqueeze(-1) - 1)
    above, equal = values > last, values == last
    left = count.unsqueeze(-1) - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= left))


def _within(predicted: Predicted, truths: Truths, radius: float, reach: float = 1.0) -> Tensor:
    """Return a mask (B, T, P) of the points that are in a box scaled by ``reach`` or near its center."""
    least = (radius * predicted.strides).view(1, 1, -1)
    near = []
    for axis in range(2):
        away = (truths.center[..., axis, None] - predicted.points[:, axis]).abs()
        near.append(away <= torch.maximum(reach / 2 * truths.size[..., axis, None], least))
    return near[0] & near[1]


def _logits_of_labels(predicted: Predicted, truths: Truths) -> Tensor:
    """Return the logits (B, T, P) of each point for the class of each ground-truth box."""
    by_class = predicted.logits.transpose(1, 2)  # (B, C, P)
    return by_class.gather(1, truths.labels.unsqueeze(-1).expand(-1, -1, by_class.shape[2]))


def _one_truth(chosen: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Return each point's box with the highest score (B, P), and a mask (B, T, P) of these pairs."""
    owner = score.masked_fill(~chosen, -torch.inf).argmax(1)
    numbers = torch.arange(chosen.shape[1], device=chosen.device).view(1, -1, 1)
    return owner, chosen & (owner.unsqueeze(1) == numbers)


def _targets(truths: Truths, owner: Tensor, won: Tensor, quality: Tensor, weight: Tensor) -> Targets:
    return Targets(
        positive=won.any(1),
        boxes=truths.boxes.gather(1, owner.unsqueeze(-1).expand(-1, -1, 4)),
        labels=truths.labels.gather(1, owner),
        quality=quality,
        weight=weight,
    )
