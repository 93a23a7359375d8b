"""Box geometry: areas, overlaps and conversions of boxes.

Boxes are tensors (..., 4) of any floating-point dtype, in ``xyxy`` format (left, top, right, bottom) and in
pixels unless stated otherwise. The leading dimensions broadcast. All functions are differentiable, and yield
finite values and gradients even for boxes without area.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

# Lower bound of divisors in square pixels, so that the IoU of two boxes without area is 0 instead of NaN.
_SMALLEST = 1e-9
# Term in CIoU's α that avoids a division by 0, as in Darknet.
_CIOU_EPS = 1e-6
# θ in SIoU's shape cost. The paper suggests 2 to 6, and its searches found values near 4.
_SIOU_THETA = 4


def to_xyxy(cxcywh: Tensor) -> Tensor:
    """Convert boxes (..., 4) from (center x, center y, width, height) to xyxy."""
    cx, cy, w, h = cxcywh.unbind(-1)
    return torch.stack((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2), -1)


def to_cxcywh(xyxy: Tensor) -> Tensor:
    """Convert boxes (..., 4) from xyxy to (center x, center y, width, height)."""
    x1, y1, x2, y2 = xyxy.unbind(-1)
    return torch.stack(((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1), -1)


def clip(boxes: Tensor, height: float, width: float) -> Tensor:
    """Clip boxes (..., 4) to an image of ``height`` by ``width`` pixels."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack((x1.clamp(0, width), y1.clamp(0, height), x2.clamp(0, width), y2.clamp(0, height)), -1)


def area(boxes: Tensor) -> Tensor:
    """Compute the areas (...) of boxes (..., 4) in square pixels. Inverted boxes have an area of 0."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return (x2 - x1).clamp(min=0) * (y2 - y1).clamp(min=0)


def _intersection_union(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the intersection and the union (...) in square pixels. The union is never 0."""
    # Single coordinates are used, so that no temporary is larger than the result.
    ax1, ay1, ax2, ay2 = a.unbind(-1)
    bx1, by1, bx2, by2 = b.unbind(-1)
    w = (torch.minimum(ax2, bx2) - torch.maximum(ax1, bx1)).clamp(min=0)
    h = (torch.minimum(ay2, by2) - torch.maximum(ay1, by1)).clamp(min=0)
    intersection = w * h
    union = (area(a) + area(b) - intersection).clamp(min=_SMALLEST)
    return intersection, union


def _hull(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the width and the height (...) of the smallest box that encloses both boxes."""
    ax1, ay1, ax2, ay2 = a.unbind(-1)
    bx1, by1, bx2, by2 = b.unbind(-1)
    w = torch.maximum(ax2, bx2) - torch.minimum(ax1, bx1)
    h = torch.maximum(ay2, by2) - torch.minimum(ay1, by1)
    return w, h


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the intersection over union (...), in 0..1, of corresponding boxes (..., 4)."""
    intersection, union = _intersection_union(a, b)
    return intersection / union


def covered(a: Tensor, b: Tensor) -> Tensor:
    """Compute the fraction (...), in 0..1, of the area of each box ``a`` (..., 4) that is inside ``b``."""
    return _intersection_union(a, b)[0] / area(a).clamp(min=_SMALLEST)


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the IoU (..., N, M) of all pairs of boxes (..., N, 4) and (..., M, 4)."""
    return iou(a.unsqueeze(-2), b.unsqueeze(-3))


def giou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the generalized IoU (...), in -1..1, of corresponding boxes (..., 4).

    It is the IoU minus the fraction of the enclosing box that neither box covers (Rezatofighi et al., 2019).
    """
    intersection, union = _intersection_union(a, b)
    w, h = _hull(a, b)
    hull = (w * h).clamp(min=_SMALLEST)
    return intersection / union - (hull - union) / hull


def diou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the distance IoU (...), in -1..1: IoU minus :func:`distance` (Zheng et al., 2020)."""
    penalty = distance(a, b)  # before the IoU, because this order determines how gradients are added
    return iou(a, b) - penalty


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Compute DIoU's penalty d²/c² (...), in 0..1, of corresponding boxes (..., 4).

    d is the distance between the centers, and c is the diagonal of the enclosing box.
    """
    ax, ay, _, _ = to_cxcywh(a).unbind(-1)
    bx, by, _, _ = to_cxcywh(b).unbind(-1)
    w, h = _hull(a, b)
    diagonal = (w.square() + h.square()).clamp(min=_SMALLEST)
    return ((ax - bx).square() + (ay - by).square()) / diagonal


def ciou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the complete IoU (...) of corresponding boxes (..., 4) (Zheng et al., 2020).

    It is DIoU - αv, with v = 4/π² · (Δ atan(w/h))² and α = v / (1 - IoU + v + 1e-6). α has no gradient.
    """
    _, _, aw, ah = to_cxcywh(a).unbind(-1)
    _, _, bw, bh = to_cxcywh(b).unbind(-1)
    turn = _angle(aw, ah) - _angle(bw, bh)
    v = (4 / math.pi**2) * turn.square()
    with torch.no_grad():
        alpha = v / (1 - iou(a, b) + v + _CIOU_EPS)
    return diou(a, b) - alpha * v


def _angle(w: Tensor, h: Tensor) -> Tensor:
    """Compute atan(w / h) with a finite gradient at 0."""
    return torch.atan2(w.clamp(min=_SMALLEST), h.clamp(min=_SMALLEST))


def eiou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the efficient IoU (...) of corresponding boxes (..., 4) (Zhang et al., 2021).

    It is DIoU - Δw²/cw² - Δh²/ch², where cw and ch are the sides of the enclosing box.
    """
    _, _, aw, ah = to_cxcywh(a).unbind(-1)
    _, _, bw, bh = to_cxcywh(b).unbind(-1)
    w, h = _hull(a, b)
    wide = (aw - bw).square() / w.square().clamp(min=_SMALLEST)
    high = (ah - bh).square() / h.square().clamp(min=_SMALLEST)
    return diou(a, b) - wide - high


def siou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the SCYLLA-IoU (...) of corresponding boxes (..., 4): IoU - (Δ + Ω) / 2 (Gevorgyan, 2022).

    The distance cost is Δ = Σ (1 - exp(-γρ)) over x and y, where ρ = (center distance / side of the enclosing
    box)², γ = 2 - sin 2α, and α is the angle of the line between the centers.

    The shape cost is Ω = Σ (1 - exp(-ω))⁴ over width and height, where ω = difference / larger value.
    """
    ax, ay, aw, ah = to_cxcywh(a).unbind(-1)
    bx, by, bw, bh = to_cxcywh(b).unbind(-1)
    w, h = _hull(a, b)
    dx, dy = ax - bx, ay - by
    # 1 - 2 sin²(α - π/4) = sin 2α = 2 sin α cos α. Centers may be so close that the bound must be squared.
    angle = 2 * (dx * dy).abs() / (dx.square() + dy.square()).clamp(min=_SMALLEST**2)
    gamma = 2 - angle
    offset = _rise(gamma * dx.square() / w.square().clamp(min=_SMALLEST)) + _rise(
        gamma * dy.square() / h.square().clamp(min=_SMALLEST)
    )
    shape = _difference(aw, bw) + _difference(ah, bh)
    return iou(a, b) - (offset + shape) / 2


def _rise(x: Tensor) -> Tensor:
    return -torch.expm1(-x)


def _difference(a: Tensor, b: Tensor) -> Tensor:
    return _rise((a - b).abs() / torch.maximum(a, b).clamp(min=_SMALLEST)).pow(_SIOU_THETA)


SIMILARITIES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "iou": iou,
    "giou": giou,
    "diou": diou,
    "ciou": ciou,
    "eiou": eiou,
    "siou": siou,
}
"""Similarity functions for box losses, by name. Each maps two boxes (..., 4) to a value (...) ≤ 1."""
