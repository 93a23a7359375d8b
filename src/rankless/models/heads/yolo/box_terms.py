"""The box terms of the YOLO losses: the error of the center and size, or 1 minus a similarity such as CIoU.

In this module, ``offsets`` are the raw predictions in the slots, (B, T, A, 4), and ``counted`` is a mask of
the matches to sum over, (B, T, A).

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
from rankless.models.heads.yolo.codec import YoloHead, decode_boxes


def squared_error(
    offsets: Tensor, head: YoloHead, truths: Truths, matches: Matches, counted: Tensor
) -> Tensor:
    """Compute Σ (2 - w·h) · (BCE of x and y + ½ squared error of tw and th), with normalized w and h.

    With ``new_coords``, the error of the size is also a cross-entropy. In both cases, the gradient with
    respect to an offset is the difference from its target.
    """
    height, width = matches.positive.shape[-2:]
    with torch.no_grad():
        cell = torch.stack((matches.columns, matches.rows), -1)
        within = truths.center / head.stride - cell  # (B, T, 2) in 0..1
        # The σ that decodes to the target center. With scale_xy=1, it equals `within`.
        sigma = ((within + (head.scale_xy - 1) / 2) / head.scale_xy).clamp(0, 1).unsqueeze(2)
        ratio = truths.size.unsqueeze(2) / head.own_anchors(offsets)  # (B, T, A, 2)
        area = truths.size.prod(-1) / (height * width * head.stride**2)
        weight = (2 - area).unsqueeze(-1)  # (B, T, 1)
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
    """Compute factor · Σ (1 - similarity of the decoded and the ground-truth box), with clipped gradients.

    ``factor`` is Darknet's ``iou_normalizer``, which is applied before clipping. ``largest`` is Darknet's
    ``max_delta``, the limit of each element of the gradient.
    """
    wanted = truths.solid.unsqueeze(2)  # (B, T, 1, 4)

    def loss(leaf: Tensor) -> Tensor:
        boxes = placed(leaf, head, matches)
        return factor * torch.where(counted, 1 - similarity(boxes, wanted), 0).sum()

    return clipped(loss, offsets, largest)


def placed(offsets: Tensor, head: YoloHead, matches: Matches) -> Tensor:
    """Decode the raw predictions in the slots (B, T, A, 4) to boxes, xyxy in input pixels."""
    columns, rows = matches.columns.unsqueeze(-1), matches.rows.unsqueeze(-1)
    return decode_boxes(offsets, columns, rows, head.own_anchors(offsets), head)


def clipped(function: Callable[[Tensor], Tensor], x: Tensor, limit: float) -> Tensor:
    """Compute the scalar ``function(x)``, and clip its gradient with respect to ``x`` to ±limit.

    Elements of the gradient that are not finite become 0. Multiplying the result scales the clipped gradient.
    """
    if not (x.requires_grad and torch.is_grad_enabled()):
        return function(x)
    result: Tensor = _Clipped.apply(x, function, limit)
    return result


class _Clipped(torch.autograd.Function):
    """A function whose gradient is computed and clipped in the forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor], limit: float) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            result = function(leaf)
            (gradient,) = torch.autograd.grad(result, leaf)
        ctx.save_for_backward(gradient.nan_to_num(0.0, 0.0, 0.0).clamp(-limit, limit))
        return result.detach()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return outer[0] * gradient, None, None
