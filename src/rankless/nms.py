"""Non-maximum suppression: of boxes that show the same object, the best one stays."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import batched_nms
from torchvision.ops import nms as torchvision_nms

from rankless.boxes import distance, iou, pairwise_iou

# Darknet's beta_nms in all its published networks.
_BETA = 0.6
# Rows of the boxes-by-boxes comparison that are computed at once.
_ROWS = 512


def nms(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor,
    *,
    kind: Literal["iou", "diou"],
    threshold: float,
    class_agnostic: bool = False,
) -> Tensor:
    """The boxes that stay when each, from the best down, removes those that are too like it.

    Equal scores rank in the order they came in.

    Args:
        boxes: xyxy in pixels, (N, 4).
        scores: (N,), of the dtype of ``boxes``.
        labels: class ids, (N,).
        kind: how alike two boxes are: ``iou``, or ``diou``, IoU - (d²/c²)^0.6 with the squared distance of
            the centres and the hull's squared diagonal (Zheng et al., 2020; Darknet's ``greedynms``).
        threshold: a box is removed that is more like a better one than this.
        class_agnostic: … like one of any class, not only of its own.

    Returns:
        The numbers of the boxes that stay, best first, (K,) int64.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes, scores, labels = boxes[order], scores[order], labels[order]
    if kind == "diou":
        kept = _greedy(boxes, torch.zeros_like(labels) if class_agnostic else labels, threshold)
    elif class_agnostic:
        kept = torchvision_nms(boxes, scores, threshold)
    else:
        kept = batched_nms(boxes, scores, labels, threshold)
    # torchvision may hand back equal scores in any order; theirs here is the order they came in.
    return order[kept.sort().values]


def _greedy(boxes: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """The numbers of the boxes that stay, of boxes sorted by score: compared on their device, walked here."""
    count = len(boxes)
    alike = torch.zeros(count, count, dtype=torch.bool, device=boxes.device)
    for start in range(0, count, _ROWS):
        rows, rest = slice(start, start + _ROWS), slice(start, count)
        near = pairwise_iou(boxes[rows], boxes[rest]) > threshold
        first, second = (near & (labels[rows, None] == labels[rest])).nonzero(as_tuple=True)
        # The distance only takes away: the few pairs whose IoU is large enough are all that can be alike.
        first, second = first + start, second + start
        a, b = boxes[first], boxes[second]
        alike[first, second] = iou(a, b) - distance(a, b).pow(_BETA) > threshold
    removed = np.zeros(count, dtype=bool)
    kept = []
    for number, rivals in enumerate(alike.cpu().numpy()):
        if not removed[number]:
            kept.append(number)
            removed |= rivals
    return torch.tensor(kept, dtype=torch.int64, device=boxes.device)
