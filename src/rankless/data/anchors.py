"""Compute anchors by k-means on the widths and heights of the training boxes, with 1 - IoU as the distance.

See Redmon and Farhadi, "YOLO9000: Better, Faster, Stronger", 2017, section 2. All sums are computed in
float64 and in a fixed order, so every rank gets the same anchors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rankless.data.datasets.annotated import BoxedImages, DetectionImages
from rankless.data.index.annotations import Annotations
from rankless.errors import UserError, counted
from rankless.geometry.letterbox import fit
from rankless.randomness import generator

RESTARTS = 5
SCENES = 500  # maximum number of images to generate for their boxes
_ROUNDS = 300  # usually a few dozen are enough, but ties could prevent convergence

Sizes = NDArray[np.float64]


def box_sizes(images: DetectionImages, size: tuple[int, int]) -> Sizes:
    """Return the width and height, (N, 2), of every training box in pixels of the letterboxed input.

    Built-in data is represented by at most 500 evenly spaced scenes.
    """
    if isinstance(images, BoxedImages):
        return _flat_sizes(images.annotations, size)
    count = len(images)
    asked = min(count, SCENES)
    sizes = [np.zeros((0, 2))]
    for number in range(asked):
        truth = images.ground_truth(number * count // asked)
        boxes = truth.boxes if truth.flags is None else truth.boxes[truth.flags == 0]
        sides = (boxes[:, 2:] - boxes[:, :2]).numpy().astype(np.float64)
        sizes.append(sides[(sides > 0).all(1)] * fit(truth.height, truth.width, size))
    return np.concatenate(sizes)


def _flat_sizes(annotations: Annotations, size: tuple[int, int]) -> Sizes:
    kinds, kind = np.unique(annotations.sizes.astype(np.int64) @ [1 << 32, 1], return_inverse=True)
    scales = [fit(each >> 32, each & 0xFFFFFFFF, size) if each else 0.0 for each in kinds.tolist()]
    scale = np.repeat(np.array(scales)[kind], np.diff(annotations.offsets))
    sides = (annotations.boxes[:, 2:] - annotations.boxes[:, :2]).astype(np.float64)
    plain = (annotations.flags == 0) & (sides > 0).all(1)
    made: Sizes = sides[plain] * scale[plain, None]
    return made


def kmeans_anchors(sizes: ArrayLike, count: int, seed: int) -> tuple[tuple[float, float], ...]:
    """Fit ``count`` anchors to box sizes in pixels, (N, 2), and return their (width, height), sorted by area.

    Lloyd's algorithm runs five times with k-means++ seeding (Arthur and Vassilvitskii, 2007). The anchors
    with the highest :func:`average_iou` are rounded to hundredths of a pixel, with sides of at least 1 pixel.
    The result does not depend on the order of the boxes.
    """
    boxes, weights = _distinct(sizes)
    if len(boxes) < count:
        raise UserError(
            "model.anchors is 'kmeans', but the training boxes have only "
            f"{counted(len(boxes), 'distinct size')} for {count} anchors; expected at least one size per "
            "anchor; add images, or use model.anchors=default"
        )
    starts = [generator(seed, "anchors", restart) for restart in range(RESTARTS)]
    candidates = [_lloyd(boxes, weights, _initial_anchors(boxes, weights, count, rng)) for rng in starts]
    best = max(candidates, key=lambda anchors: _average(boxes, weights, anchors))
    rounded = best.round(2).clip(1.0).tolist()
    return tuple((w, h) for w, h in sorted(rounded, key=lambda side: (side[0] * side[1], side[0])))


def average_iou(sizes: ArrayLike, anchors: ArrayLike) -> float:
    """Return the mean IoU of centered boxes, (N, 2), with their best anchors, (A, 2); NaN without boxes."""
    boxes, weights = _distinct(sizes)
    return _average(boxes, weights, np.asarray(anchors, np.float64)) if len(boxes) else math.nan


def _distinct(sizes: ArrayLike) -> tuple[Sizes, NDArray[Any]]:
    """Return the sorted distinct sizes, (U, 2), and the number of boxes of each size, (U,)."""
    boxes = np.asarray(sizes, np.float64).reshape(-1, 2)
    return np.unique(boxes, axis=0, return_counts=True)


def _iou(boxes: Sizes, anchors: Sizes) -> Sizes:
    """Return the (N, A) IoU matrix of centered boxes, (N, 2), and anchors, (A, 2)."""
    shared: Sizes = np.minimum(boxes[:, None], anchors[None]).prod(2)
    union: Sizes = boxes.prod(1)[:, None] + anchors.prod(1)[None] - shared
    return shared / union


def _average(boxes: Sizes, weights: NDArray[Any], anchors: Sizes) -> float:
    return math.fsum(_iou(boxes, anchors).max(1) * weights) / int(weights.sum())


def _initial_anchors(boxes: Sizes, weights: NDArray[Any], count: int, rng: np.random.Generator) -> Sizes:
    """Choose initial anchors by k-means++, which samples distant boxes with a higher probability."""
    taken: list[int] = []
    weighted = weights.astype(np.float64)
    for _ in range(count):
        steps = np.cumsum(weighted)
        drawn = int(np.searchsorted(steps, rng.random() * steps[-1], side="right"))
        taken.append(min(drawn, int(np.flatnonzero(weighted)[-1])))
        distance = 1 - _iou(boxes, boxes[taken]).max(1)
        # If all boxes are nearly equal, all distances may round to 0.
        weighted = weights * np.maximum(distance, 1e-12) ** 2
        weighted[taken] = 0
    return boxes[taken]


def _lloyd(boxes: Sizes, weights: NDArray[Any], anchors: Sizes) -> Sizes:
    """Alternate between assigning boxes to their nearest anchors and moving anchors to the median boxes.

    The median fits slightly better than the mean. It does not minimize 1 - IoU, so a round may make the
    anchors worse. The best anchors of all rounds are returned.
    """
    best = _average(boxes, weights, anchors), anchors
    nearest = np.zeros(0)
    for _ in range(_ROUNDS):
        before, nearest = nearest, _iou(boxes, anchors).argmax(1)
        if np.array_equal(before, nearest):
            break
        anchors = np.stack(
            [
                _median(boxes[nearest == number], weights[nearest == number], anchor)
                for number, anchor in enumerate(anchors)
            ]
        )
        score = _average(boxes, weights, anchors)
        if score > best[0]:
            best = score, anchors
    return best[1]


def _median(boxes: Sizes, weights: NDArray[Any], before: Sizes) -> Sizes:
    """Return the weighted median width and height of boxes, (N, 2), or ``before`` if N is 0."""
    if not len(boxes):
        return before
    median = np.empty(2)
    for side in (0, 1):
        order = boxes[:, side].argsort(kind="stable")
        steps = weights[order].cumsum()
        median[side] = boxes[order[np.searchsorted(steps, steps[-1] / 2)], side]
    return median
