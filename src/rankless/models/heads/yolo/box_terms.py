"""The box terms of the YOLO losses: the error of center and size, and 1 less a likeness to the truth.

Sources: YOLOv3 (Redmon and Farhadi, 2018), YOLOv4 (Bochkovskiy, Wang and Liao, 2020), Darknet's yolo_layer.c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rankless.losses.logits import cross_entropy
from rankless.models.heads.truths import Truths
from rankless.models.heads.yolo.assign import Matches
from rankless.models.heads.yolo.codec import YoloHead, place


def squared_error(
    offsets: Tensor, head: YoloHead, truths: Truths, matches: Matches, counted: Tensor
) -> Tensor:
    """Σ (2 - w·h) · (BCE of x and y + ½ squared error of tw and th), w and h as shares of the input.

    Where the head's sizes are σ too (``new_coords``), theirs is the cross-entropy as well: either way the
    gradient on an offset is its distance from the right value.

    Args:
        offsets: (B, T, A, 4) raw predictions of the slots.
        head, truths, matches: of this head.
        counted: the matches that are added up, (B, T, A) bool.
    """
    height, width = matches.positive.shape[-2:]
    with torch.no_grad():
        cell = torch.stack((matches.columns, matches.rows), -1)
        within = truths.center / head.stride - cell  # (B, T, 2) in 0..1
        # What σ has to be, so that the decoded center is right; with scale_xy 1 it is `within` itself.
        sigma = ((within + (head.scale_xy - 1) / 2) / head.scale_xy).clamp(0, 1).unsqueeze(2)
        ratio = truths.size.unsqueeze(2) / head.own_anchors(offsets)  # (B, T, A, 2)
        share = truths.size.prod(-1) / (height * width * head.stride**2)
        weight = (2 - share).unsqueeze(-1)  # (B, T, 1)
    xy = cross_entropy(offsets[..., :2], sigma.expand_as(ratio)).sum(-1)
    if head.new_coords:
        wh = cross_entropy(offsets[..., 2:], (ratio.sqrt() / 2).clamp(0, 1)).sum(-1)
    else:
        wh = (offsets[..., 2:] - ratio.log()).square().sum(-1) / 2
    return torch.where(counted, weight * (xy + wh), 0).sum()


def dissimilarity(
    offsets: Tensor,
    head: YoloHead,
    truths: Truths,
    matches: Matches,
    counted: Tensor,
    similarity: Callable[[Tensor, Tensor], Tensor],
    *,
    factor: float,
    largest: float,
) -> Tensor:
    """factor · Σ (1 - similarity of the decoded box and the truth), its gradient cut truth by truth.

    Args:
        offsets: (B, T, A, 4) raw predictions of the slots.
        head, truths, matches: of this head.
        counted: the matches that are added up, (B, T, A) bool.
        similarity: one of :data:`rankless.geometry.boxes.SIMILARITIES`.
        factor: Darknet's ``iou_normalizer``; it comes before the cut.
        largest: the cut, Darknet's ``max_delta``.
    """
    wanted = truths.solid.unsqueeze(2)  # (B, T, 1, 4)

    def loss(free: Tensor) -> Tensor:
        found = placed(free, head, matches)
        return factor * torch.where(counted, 1 - similarity(found, wanted), 0).sum()

    return clipped(loss, offsets, largest)


def placed(offsets: Tensor, head: YoloHead, matches: Matches) -> Tensor:
    """The boxes of the slots: (B, T, A, 4) raw -> (B, T, A, 4) xyxy in pixels of the network's input."""
    columns, rows = matches.columns.unsqueeze(-1), matches.rows.unsqueeze(-1)
    return place(offsets, columns, rows, head.own_anchors(offsets), head)


def clipped(function: Callable[[Tensor], Tensor], x: Tensor, limit: float) -> Tensor:
    """``function(x)``, a scalar, whose gradient on ``x`` is cut to ±limit, and 0 where it is not finite.

    The cut comes before whatever the result is multiplied with later: scaling the loss scales the gradient.
    """
    if not (x.requires_grad and torch.is_grad_enabled()):
        return function(x)
    result: Tensor = _Clipped.apply(x, function, limit)
    return result


class _Clipped(torch.autograd.Function):
    """Computes the gradient on the way forward, where it is not yet multiplied by anything."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor], limit: float) -> Tensor:
        with torch.enable_grad():
            free = x.detach().requires_grad_()
            result = function(free)
            (gradient,) = torch.autograd.grad(result, free)
        ctx.save_for_backward(gradient.nan_to_num(0.0, 0.0, 0.0).clamp(-limit, limit))
        return result.detach()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return outer[0] * gradient, None, None
