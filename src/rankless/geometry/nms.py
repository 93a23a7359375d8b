"""Non-maximum suppression: of boxes that show the same object, the best one stays."""

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
# Boxes from which on torchvision takes class by class instead of all classes side by side.
_MANY = {"cpu": 1000, "cuda": 25_000}
# Where torchvision has its operators: since 0.29, and before.
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
    """The boxes that stay when each, from the best down, removes those that are too like it.

    Equal scores rank in the order they came in.

    Args:
        boxes: xyxy in pixels, (N, 4).
        scores: (N,), of the dtype of ``boxes``.
        labels: class ids, (N,).
        kind: how alike two boxes are: ``iou``, or ``diou``, IoU - (d²/c²)^0.6 with the squared distance of
            the centers and the hull's squared diagonal (Zheng et al., 2020; Darknet's ``greedynms``).
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
        kept = _torchvision_nms()(boxes, scores, threshold)
    else:
        kept = _by_class(boxes, scores, labels, threshold)
    # torchvision may hand back equal scores in any order; theirs here is the order they came in.
    return order[kept.sort().values]


@cache
def _torchvision_nms() -> Callable[[Tensor, Tensor, float], Tensor]:
    """torchvision's operator without torchvision, which takes as long to import as PyTorch itself."""
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
    """torchvision's ``batched_nms``, bit for bit."""
    if not len(boxes):
        return labels
    run = _torchvision_nms()
    if len(boxes) <= _MANY.get(boxes.device.type, _MANY["cuda"]):
        apart = labels.to(boxes) * (boxes.max() + 1)  # no two classes overlap
        return run(boxes + apart[:, None], scores, threshold)
    kept = []
    for label in labels.unique():
        (own,) = torch.where(labels == label)
        kept.append(own[run(boxes[own], scores[own], threshold)])
    return torch.cat(kept)


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
