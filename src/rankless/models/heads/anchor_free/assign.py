"""Which points of an anchor-free head answer for which truth: SimOTA and task-aligned assignment.

Both choose by what the network predicts at the moment. Everything is computed for all pairs of truths and
points at once, with shapes that do not depend on the data: nothing waits for the device. Equals are told
apart by the point's number, and truths are first put into an order of their own, so that the result does not
depend on the order in which they are listed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rankless.geometry.boxes import pairwise_iou
from rankless.models.heads.truths import Truths

Assignment = Literal["simota", "task-aligned"]

# Task-aligned: score^α · IoU^β. Paper: α = 1, β = 6, 13 points. The root of the score, with 10 points, leans
# less on the classes, which a network that starts from nothing does not know yet.
ALPHA = 0.5
BETA = 6.0
POINTS_PER_TRUTH = 10
# An IoU below counts as this, so that its logarithm is finite.
_SMALLEST_OVERLAP = 1e-6

# SimOTA, as YOLOX has it.
CENTER_RADIUS = 2.5
OVERLAPS_COUNTED = 10
OVERLAP_COST = 3.0
OUTSIDE_COST = 1e5
_SIMOTA_EPS = 1e-8

# Truths times points compared at once; about fifteen temporaries of 4 bytes each live at a time.
_PAIRS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Predicted:
    """What the heads say, all their points in one row; without gradients.

    Attributes:
        boxes: xyxy in pixels, (B, P, 4).
        logits: of the classes, (B, P, C).
        points: x and y in pixels, (P, 2).
        strides: pixels per cell at each point, (P,).
        radius: points so many cells from a truth's center are offered to it (task-aligned) even if it does
            not reach so far. With 1 a truth smaller than a cell has some four points at each head, wherever
            it lies; with a half it has the nearest.
    """

    boxes: Tensor
    logits: Tensor
    points: Tensor
    strides: Tensor
    radius: float = 1.0


@dataclass(frozen=True)
class Targets:
    """What each point has to say.

    Attributes:
        positive: it answers for a truth, (B, P) bool.
        boxes: that truth's, xyxy in pixels, (B, P, 4); a truth's or zeros where not positive.
        labels: that truth's, int64, (B, P).
        quality: what the score of that class is to be, 0..1; 0 where not positive, (B, P).
        weight: of the box in the loss; 0 where not positive, (B, P).
    """

    positive: Tensor
    boxes: Tensor
    labels: Tensor
    quality: Tensor
    weight: Tensor


def assign(rule: Assignment, predicted: Predicted, truths: Truths) -> Targets:
    """Give each point at most one truth, image by image.

    Args:
        rule: by which.
        predicted: (B, P).
        truths: (B, T); T may be 0.
    """
    truths = in_order(truths)
    count, points, _ = predicted.boxes.shape
    at_once = max(1, _PAIRS_AT_ONCE // (truths.valid.shape[1] * points))
    some = [slice(start, start + at_once) for start in range(0, count, at_once)]
    parts = [_RULES[rule](_predicted_in(predicted, s), _truths_in(truths, s)) for s in some]
    return Targets(
        positive=torch.cat([part.positive for part in parts]),
        boxes=torch.cat([part.boxes for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        quality=torch.cat([part.quality for part in parts]),
        weight=torch.cat([part.weight for part in parts]),
    )


def in_order(truths: Truths) -> Truths:
    """The same truths, sorted by sides and then by label; at least one, which may be an invalid one."""
    half = truths.size / 2
    # No thinner than Truths allows, so that a truth without area can be overlapped.
    boxes = torch.cat((truths.center - half, truths.center + half), -1)
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
    """The points that both classify and place a truth best (TOOD, Feng et al., 2021).

    Of the points within a truth (of a small one: near its center) those with the highest score^α · IoU^β
    answer, as many as ``POINTS_PER_TRUTH``; a point that several truths chose belongs to the one it overlaps
    most. The weight is the point's metric over that of the truth's best point; the quality is the weight
    times the truth's best IoU. In the paper the quality is the weight too. Then a truth that no box overlaps
    much yet, as it is with small ones, hardly counts and is learned late or never; and a step of such truths
    alone is divided by almost nothing.

    Args:
        predicted: (B, P).
        truths: (B, T) with T at least 1, as :func:`in_order` gives them.
    """
    overlap = pairwise_iou(truths.boxes, predicted.boxes)  # (B, T, P)
    # The logarithm of the metric: IoU^6 alone would leave float32's range.
    metric = ALPHA * F.logsigmoid(_logits_of_labels(predicted, truths))
    metric = metric + BETA * overlap.clamp(min=_SMALLEST_OVERLAP).log()
    offered = _within(predicted, truths, predicted.radius) & truths.valid.unsqueeze(-1)
    metric = metric.masked_fill(~offered, -torch.inf)
    room = torch.full_like(truths.labels, min(POINTS_PER_TRUTH, metric.shape[-1]))
    chosen = offered & highest(metric, room, POINTS_PER_TRUTH)
    owner, won = _one_truth(chosen, overlap)
    best_metric = metric.masked_fill(~won, -torch.inf).amax(-1, keepdim=True)
    best_overlap = overlap.masked_fill(~won, 0).amax(-1, keepdim=True)
    # Outside `won` infinity less infinity is no number; it is filled.
    share = (metric - best_metric).exp().masked_fill(~won, 0)  # (B, T, P)
    return _targets(truths, owner, won, (share * best_overlap).amax(1), share.amax(1))


def simota(predicted: Predicted, truths: Truths) -> Targets:
    """The cheapest points, as many as a truth's ten best IoUs add up to (YOLOX, Ge et al., 2021).

    Points within a truth or within ``CENTER_RADIUS`` cells of its center are offered to it, those that are
    not both at a price far above all others. A point costs the cross-entropy of its classes - 3·log(IoU); one
    that several truths chose belongs to the one it costs least. Quality is the IoU, every weight is 1. The
    paper's objectness, here absent, is left out of the cost.

    Args:
        predicted: (B, P).
        truths: (B, T) with T at least 1, as :func:`in_order` gives them.
    """
    overlap = pairwise_iou(truths.boxes, predicted.boxes)  # (B, T, P)
    inside = _within(predicted, truths, 0.0)
    central = _within(predicted, truths, CENTER_RADIUS, reach=0.0)
    # Σ over classes of the cross-entropy with "this class and no other".
    classes = F.softplus(predicted.logits).sum(-1).unsqueeze(1) - _logits_of_labels(predicted, truths)
    cost = classes - OVERLAP_COST * (overlap + _SIMOTA_EPS).log()
    cost = cost + OUTSIDE_COST * ~(inside & central)
    offered = (inside | central) & truths.valid.unsqueeze(-1)
    most = min(OVERLAPS_COUNTED, cost.shape[-1])
    room = overlap.masked_fill(~offered, 0).topk(most).values.sum(-1).long().clamp(1, most)  # (B, T)
    cheap = (-cost).masked_fill(~offered, -torch.inf)
    chosen = offered & highest(cheap, room, OVERLAPS_COUNTED)
    owner, won = _one_truth(chosen, cheap)
    quality = overlap.masked_fill(~won, 0).amax(1)
    return _targets(truths, owner, won, quality, won.any(1).to(quality.dtype))


_RULES: dict[Assignment, Callable[[Predicted, Truths], Targets]] = {
    "simota": simota,
    "task-aligned": task_aligned,
}


def highest(values: Tensor, room: Tensor, most: int) -> Tensor:
    """Marks the ``room`` largest of each row, of equals the first.

    Args:
        values: (B, T, P).
        room: int64 in 1..min(most, P), (B, T).
        most: the largest room there can be.

    Returns:
        (B, T, P) bool, exactly ``room`` of each row.
    """
    top = values.topk(min(most, values.shape[-1])).values
    # Which of equals `topk` takes is left open; the value of the last one is not.
    last = top.gather(-1, room.unsqueeze(-1) - 1)
    above, equal = values > last, values == last
    left = room.unsqueeze(-1) - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= left))


def _within(predicted: Predicted, truths: Truths, radius: float, reach: float = 1.0) -> Tensor:
    """Whether a point lies no farther from a truth's center than its sides, or ``radius`` cells if more.

    Args:
        predicted, truths: (B, P) and (B, T).
        radius: in cells of the point's head.
        reach: factor on the truth's sides.

    Returns:
        (B, T, P) bool.
    """
    least = (radius * predicted.strides).view(1, 1, -1)
    near = []
    for axis in range(2):
        away = (truths.center[..., axis, None] - predicted.points[:, axis]).abs()
        near.append(away <= torch.maximum(reach / 2 * truths.size[..., axis, None], least))
    return near[0] & near[1]


def _logits_of_labels(predicted: Predicted, truths: Truths) -> Tensor:
    """Each point's logit of each truth's class: (B, T, P)."""
    by_class = predicted.logits.transpose(1, 2)  # (B, C, P)
    return by_class.gather(1, truths.labels.unsqueeze(-1).expand(-1, -1, by_class.shape[2]))


def _one_truth(chosen: Tensor, worth: Tensor) -> tuple[Tensor, Tensor]:
    """Of the truths that chose a point the one to which it is worth most, of equals the first.

    Args:
        chosen: (B, T, P) bool.
        worth: (B, T, P).

    Returns:
        That truth's number (B, P), any where no truth chose the point; the choices that stand (B, T, P) bool.
    """
    owner = worth.masked_fill(~chosen, -torch.inf).argmax(1)
    numbers = torch.arange(chosen.shape[1], device=chosen.device).view(1, -1, 1)
    return owner, chosen & (owner.unsqueeze(1) == numbers)


def _targets(truths: Truths, owner: Tensor, won: Tensor, quality: Tensor, weight: Tensor) -> Targets:
    """The truths spread over the points: (B, P), (B, T, P), (B, P), (B, P)."""
    return Targets(
        positive=won.any(1),
        boxes=truths.boxes.gather(1, owner.unsqueeze(-1).expand(-1, -1, 4)),
        labels=truths.labels.gather(1, owner),
        quality=quality,
        weight=weight,
    )


def _predicted_in(predicted: Predicted, some: slice) -> Predicted:
    """What is predicted in some of the images."""
    return replace(predicted, boxes=predicted.boxes[some], logits=predicted.logits[some])


def _truths_in(truths: Truths, some: slice) -> Truths:
    """The truths of some of the images."""
    parts = (truths.boxes, truths.center, truths.size, truths.labels, truths.valid)
    return Truths(*(part[some] for part in parts))
