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

# The value of beta_nms in all published Darknet networks.
_BETA = 0.6
# Number of rows of the comparison matrix to compute at once.
_ROWS = 128
# With more boxes than this, torchvision processes class by class instead of all classes at once.
_MANY = {"cpu": 1000, "cuda": 25_000}
# The library with torchvision's operators, since version 0.29 and before it.
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
    """Select boxes by non-maximum suppression, and return their indices (K,), best first.

    In order of score, each selected box removes all later boxes that are too similar to it. Boxes with equal
    scores keep their order.

    Args:
        boxes: xyxy in pixels, (N, 4).
        scores: scores of the boxes, (N,), with the dtype of ``boxes``.
        labels: class ids, (N,).
        kind: similarity measure: ``iou``, or ``diou``, which is IoU - (d²/c²)^0.6 with the distance d between
            the centers and the diagonal c of the enclosing box (Zheng et al., 2020; Darknet's ``greedynms``).
        threshold: similarity to a better box above which a box is removed.
        class_agnostic: whether boxes of different classes are compared.
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


def best_first(scores: Tensor, count: int) -> Tensor:
    """Return the indices of the ``count`` highest scores, best first. Equal scores keep their order."""
    if len(scores) > count:
        # Sorting several hundred thousand scores would take longer than the network itself.
        worst = scores.topk(count).values[-1]
        better = (~(scores <= worst)).nonzero().squeeze(1)
        equal = (scores == worst).nonzero().squeeze(1)[: max(count - len(better), 0)]
        chosen = torch.cat((better, equal)).sort().values
    else:
        chosen = torch.arange(len(scores), device=scores.device)
    return chosen[scores[chosen].sort(descending=True, stable=True).indices[:count]]


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
    """Apply NMS class by class, like torchvision's ``batched_nms``."""
    if not len(boxes):
        return labels
    run = _torchvision_nms()
    if len(boxes) <= _MANY.get(boxes.device.type, _MANY["cuda"]):
        # The offsets separate the classes. float32 would round boxes that extend far beyond the image.
        wide = boxes.double()
        offsets = labels.double() * (wide.max() - wide.min() + 1)
        return run(wide + offsets[:, None], scores.double(), threshold)
    selected = []
    for label in labels.unique():
        (same,) = torch.where(labels == label)
        selected.append(same[run(boxes[same], scores[same], threshold)])
    return torch.cat(selected)


def _greedy(boxes: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """Return the indices of the boxes that DIoU-NMS selects. ``boxes`` must be sorted by score."""
    if not len(boxes):
        return labels
    # Sort by class, so that a block of rows is compared only with the columns of its own classes.
    labels, by_class = labels.sort(stable=True)
    boxes, ends = boxes[by_class], torch.searchsorted(labels, labels, right=True).cpu()
    pairs = []
    for start in range(0, len(boxes), _ROWS):
        stop = min(start + _ROWS, len(boxes))
        rows, rest = slice(start, stop), slice(start, int(ends[stop - 1]))
        near = pairwise_iou(boxes[rows], boxes[rest]) > threshold
        first, second = (near & (labels[rows, None] == labels[rest])).triu(1).nonzero(as_tuple=True)
        # The distance reduces the similarity, so only the few pairs with a large IoU can be similar.
        a, b = boxes[first + start], boxes[second + start]
        similar = iou(a, b) - distance(a, b).pow(_BETA) > threshold
        pairs.append(torch.stack((first[similar], second[similar])) + start)
    better, worse = torch.cat(pairs, 1).cpu().numpy()
    removed = np.zeros(len(boxes), dtype=bool)
    each, starts = np.unique(better, return_index=True)
    for index, start, stop in zip(each, starts, np.searchsorted(better, each, "right"), strict=True):
        if not removed[index]:
            removed[worse[start:stop]] = True
    return by_class[torch.from_numpy(~removed).to(boxes.device)]
