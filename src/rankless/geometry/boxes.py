"""Box geometry: areas, overlaps and conversions of tensors of boxes.

A box is ``xyxy`` (left, top, right, bottom) in pixels unless a function says otherwise; the last dimension
holds the four coordinates and the others broadcast. Boxes may have any floating dtype. Every function is
differentiable, and boxes without area give finite values and gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

# Divisors are at least this many square pixels, so that two boxes without area overlap by 0, not by 0/0.
_SMALLEST = 1e-9
# The term in CIoU's trade-off that avoids a division by 0, as in Darknet.
_CIOU_EPS = 1e-6
# θ of SIoU's shape cost: the paper gives a range of 2 to 6, and its searches ended near 4.
_SIOU_THETA = 4


def to_xyxy(cxcywh: Tensor) -> Tensor:
    """Convert center x, center y, width, height to xyxy; both of shape (..., 4)."""
    cx, cy, w, h = cxcywh.unbind(-1)
    return torch.stack((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2), -1)


def to_cxcywh(xyxy: Tensor) -> Tensor:
    """Convert xyxy to center x, center y, width, height; both of shape (..., 4)."""
    x1, y1, x2, y2 = xyxy.unbind(-1)
    return torch.stack(((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1), -1)


def clip(boxes: Tensor, height: float, width: float) -> Tensor:
    """Clip boxes of shape (..., 4) to an image of ``height`` by ``width`` pixels."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack((x1.clamp(0, width), y1.clamp(0, height), x2.clamp(0, width), y2.clamp(0, height)), -1)


def area(boxes: Tensor) -> Tensor:
    """Compute the areas (...) of boxes (..., 4) in square pixels; inverted boxes have an area of 0."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return (x2 - x1).clamp(min=0) * (y2 - y1).clamp(min=0)


def _intersection_union(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the intersection and the union, each (...), in square pixels; the union is never 0."""
    # Coordinate by coordinate: no temporary is larger than the result.
    ax1, ay1, ax2, ay2 = a.unbind(-1)
    bx1, by1, bx2, by2 = b.unbind(-1)
    w = (torch.minimum(ax2, bx2) - torch.maximum(ax1, bx1)).clamp(min=0)
    h = (torch.minimum(ay2, by2) - torch.maximum(ay1, by1)).clamp(min=0)
    intersection = w * h
    union = (area(a) + area(b) - intersection).clamp(min=_SMALLEST)
    return intersection, union


def _hull(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the width and the height, each (...), of the smallest box around ``a`` and ``b``."""
    ax1, ay1, ax2, ay2 = a.unbind(-1)
    bx1, by1, bx2, by2 = b.unbind(-1)
    w = torch.maximum(ax2, bx2) - torch.minimum(ax1, bx1)
    h = torch.maximum(ay2, by2) - torch.minimum(ay1, by1)
    return w, h


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the intersection over union (...), in 0..1, of corresponding boxes (..., 4)."""
    intersection, union = _intersection_union(a, b)
    return intersection / union


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the IoU of all pairs of boxes: (..., N, 4), (..., M, 4) -> (..., N, M)."""
    return iou(a.unsqueeze(-2), b.unsqueeze(-3))


def giou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the generalized IoU, -1..1: IoU minus the empty fraction of the hull.

    The boxes have shape (..., 4), the result has shape (...) (Rezatofighi et al., 2019).
    """
    intersection, union = _intersection_union(a, b)
    w, h = _hull(a, b)
    hull = (w * h).clamp(min=_SMALLEST)
    return intersection / union - (hull - union) / hull


def diou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the distance IoU, -1..1: IoU - d²/c², as in :func:`distance` (Zheng et al., 2020).

    The boxes have shape (..., 4), the result has shape (...).
    """
    penalty = distance(a, b)  # before the IoU, because this determines the order in which gradients are added
    return iou(a, b) - penalty


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Compute DIoU's penalty d²/c², 0..1: the centers' squared distance over the hull's squared diagonal.

    The boxes have shape (..., 4), the result has shape (...).
    """
    ax, ay, _, _ = to_cxcywh(a).unbind(-1)
    bx, by, _, _ = to_cxcywh(b).unbind(-1)
    w, h = _hull(a, b)
    diagonal = (w.square() + h.square()).clamp(min=_SMALLEST)
    return ((ax - bx).square() + (ay - by).square()) / diagonal


def ciou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the complete IoU: DIoU - αv, v = 4/π² · (Δ atan(w/h))², α = v / (1 - IoU + v + 1e-6).

    The boxes have shape (..., 4), the result has shape (...). α is a weight and has no gradient (Zheng et
    al., 2020).
    """
    _, _, aw, ah = to_cxcywh(a).unbind(-1)
    _, _, bw, bh = to_cxcywh(b).unbind(-1)
    turn = _angle(aw, ah) - _angle(bw, bh)
    v = (4 / math.pi**2) * turn.square()
    with torch.no_grad():
        alpha = v / (1 - iou(a, b) + v + _CIOU_EPS)
    return diou(a, b) - alpha * v


def _angle(w: Tensor, h: Tensor) -> Tensor:
    """Compute atan(w / h), with a finite gradient if both are 0."""
    return torch.atan2(w.clamp(min=_SMALLEST), h.clamp(min=_SMALLEST))


def eiou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the efficient IoU: DIoU - Δw²/cw² - Δh²/ch² with the hull's sides cw, ch (Zhang et al., 2021).

    The boxes have shape (..., 4), the result has shape (...).
    """
    _, _, aw, ah = to_cxcywh(a).unbind(-1)
    _, _, bw, bh = to_cxcywh(b).unbind(-1)
    w, h = _hull(a, b)
    wide = (aw - bw).square() / w.square().clamp(min=_SMALLEST)
    high = (ah - bh).square() / h.square().clamp(min=_SMALLEST)
    return diou(a, b) - wide - high


def siou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the SCYLLA-IoU: IoU - (Δ + Ω) / 2 (Gevorgyan, 2022).

    The distance cost Δ = Σ (1 - exp(-γρ)) over x and y, ρ = (center distance / hull's side)², is softened by
    γ = 2 - Λ if the centers lie on a diagonal: Λ = sin 2α, with α the angle of the line between them. The
    shape cost is Ω = Σ (1 - exp(-ω))⁴ over width and height, ω = difference / larger. The boxes have shape
    (..., 4), the result has shape (...).
    """
    ax, ay, aw, ah = to_cxcywh(a).unbind(-1)
    bx, by, bw, bh = to_cxcywh(b).unbind(-1)
    w, h = _hull(a, b)
    dx, dy = ax - bx, ay - by
    # 1 - 2 sin²(α - π/4) = sin 2α = 2 sin α cos α. Centers may be much closer than a box is wide.
    angle = 2 * (dx * dy).abs() / (dx.square() + dy.square()).clamp(min=_SMALLEST**2)
    gamma = 2 - angle
    offset = _rise(gamma * dx.square() / w.square().clamp(min=_SMALLEST)) + _rise(
        gamma * dy.square() / h.square().clamp(min=_SMALLEST)
    )
    shape = _difference(aw, bw) + _difference(ah, bh)
    return iou(a, b) - (offset + shape) / 2


def _rise(x: Tensor) -> Tensor:
    """Compute 1 - exp(-x)."""
    return -torch.expm1(-x)


def _difference(a: Tensor, b: Tensor) -> Tensor:
    """Compute the term of SIoU's shape cost for the widths, or for the heights, of two boxes."""
    return _rise((a - b).abs() / torch.maximum(a, b).clamp(min=_SMALLEST)).pow(_SIOU_THETA)


SIMILARITIES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "iou": iou,
    "giou": giou,
    "diou": diou,
    "ciou": ciou,
    "eiou": eiou,
    "siou": siou,
}
"""Functions by name that compute the similarity (...), at most 1, of boxes (..., 4), for box losses."""
