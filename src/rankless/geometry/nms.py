"""Non-maximum suppression."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rankless.geometry.boxes import distance, iou, pairwise_iou

# Darknet's beta_nms in all its published networks.
_BETA = 0.6
# Rows of the boxes-by-boxes comparison that are computed at once.
_ROWS = 512
# Above so many boxes torchvision processes class by class instead of all classes at once.
_MANY = {"cpu": 1000, "cuda": 25_000}
# Libraries with torchvision's operators: since 0.29, and before.
_OPERATORS = ("_C_stable.so", "_C.so")


def nms(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor,
    *,
    kind: Literal["iou", "diou"],
    threshold: float,
    class_agnostic: bool = False,
) -> Tensor:
    """Select boxes: each, from the best down, removes those that are too similar.

    Boxes with equal scores rank in the given order.

    Args:
        boxes: xyxy in pixels, (N, 4).
        scores: (N,), of the dtype of ``boxes``.
        labels: class ids, (N,).
        kind: similarity of two boxes: ``iou``, or ``diou``, IoU - (d²/c²)^0.6 with the squared distance of
            the centers and the hull's squared diagonal (Zheng et al., 2020; Darknet's ``greedynms``).
        threshold: a box is removed if its similarity to a better one exceeds this.
        class_agnostic: compare boxes of all classes, not only of the same class.

    Returns:
        Indices of the selected boxes, best first, (K,) int64.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes, scores, labels = boxes[order], scores[order], labels[order]
    if kind == "diou":
        selected = _greedy(boxes, torch.zeros_like(labels) if class_agnostic else labels, threshold)
    elif class_agnostic:
        selected = _torchvision_nms()(boxes, scores, threshold)
    else:
        selected = _by_class(boxes, scores, labels, threshold)
    # torchvision may return equal scores in any order; restore the given order.
    return order[selected.sort().values]


@cache
def _torchvision_nms() -> Callable[[Tensor, Tensor, float], Tensor]:
    """Load torchvision's operator without importing torchvision, which takes as long as importing PyTorch."""
    package = find_spec("torchvision")
    if package and package.origin and "torchvision" not in sys.modules:
        libraries = (Path(package.origin).with_name(name) for name in _OPERATORS)
        if library := next((path for path in libraries if path.exists()), None):
            torch.ops.load_library(library)
    if not hasattr(torch.ops.torchvision, "nms"):
        importlib.import_module("torchvision")
    operator: Callable[[Tensor, Tensor, float], Tensor] = torch.ops.torchvision.nms
    return operator


def _by_class(boxes: Tensor, scores: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """Compute NMS class by class, as torchvision's ``batched_nms`` does for boxes inside an image."""
    if not len(boxes):
        return labels
    run = _torchvision_nms()
    if len(boxes) <= _MANY.get(boxes.device.type, _MANY["cuda"]):
        # No two classes overlap. A box may extend a million pixels beyond the image: float32 would round it.
        wide = boxes.double()
        offsets = labels.double() * (wide.max() - wide.min() + 1)
        return run(wide + offsets[:, None], scores.double(), threshold)
    selected = []
    for label in labels.unique():
        (same,) = torch.where(labels == label)
        selected.append(same[run(boxes[same], scores[same], threshold)])
    return torch.cat(selected)


def _greedy(boxes: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """Return the indices of the selected boxes, given sorted by score; compared on their device."""
    count = len(boxes)
    similar = torch.zeros(count, count, dtype=torch.bool, device=boxes.device)
    for start in range(0, count, _ROWS):
        rows, rest = slice(start, start + _ROWS), slice(start, count)
        near = pairwise_iou(boxes[rows], boxes[rest]) > threshold
        first, second = (near & (labels[rows, None] == labels[rest])).nonzero(as_tuple=True)
        # The distance only reduces the similarity: only the few pairs with a large IoU can be similar.
        first, second = first + start, second + start
        a, b = boxes[first], boxes[second]
        similar[first, second] = iou(a, b) - distance(a, b).pow(_BETA) > threshold
    removed = np.zeros(count, dtype=bool)
    selected = []
    for index, neighbors in enumerate(similar.cpu().numpy()):
        if not removed[index]:
            selected.append(index)
            removed |= neighbors
    return torch.tensor(selected, dtype=torch.int64, device=boxes.device)
