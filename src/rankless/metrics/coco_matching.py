"""Match the detections with the objects in a data set by the same rules as cocoapi's ``cocoeval``.

All images and classes are matched at once, for ten IoU thresholds and four area ranges.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IOUS = np.linspace(0.5, 0.95, 10)
AREAS = ("all", "small", "medium", "large")
WRONG, RIGHT, IGNORED = 0, 1, 2
"""The outcomes of a detection. A match with a crowd or a difficult object is ignored."""
_RANGES = np.array([(0, 1e10), (0, 32**2), (32**2, 96**2), (96**2, 1e10)])  # pixels, both ends included
_PAIRS = 1 << 18  # number of pairs (detection, object) to compare at once
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Found(NamedTuple):
    """The detections in all images, sorted by class, then by image, then by descending score.

    Attributes:
        boxes: x, y, width and height in pixels, (D, 4).
        group: a number for the class and image, ascending, (D,).
        place: number of better detections in the same group, (D,).
        scores: scores of the detections, (D,).
    """

    boxes: Floats
    group: Integers
    place: Integers
    scores: Floats


class Objects(NamedTuple):
    """The objects in all images, sorted by class, then by image, otherwise in their original order.

    Attributes:
        boxes: x, y, width and height in pixels, (G, 4).
        group: as in :class:`Found`, (G,).
        crowd: whether the box marks a group of objects, (G,).
        shared: whether several detections may match the object, (G,).
        counts: whether the object counts as missed if it is not matched, for each area range, (G, 4).
    """

    boxes: Floats
    group: Integers
    crowd: Flags
    shared: Flags
    counts: Flags


def in_ranges(areas: Floats) -> Flags:
    """Return a mask (N, 4) of the ranges in :data:`AREAS` that contain each area (N,), in square pixels."""
    flags: Flags = (areas[:, None] >= _RANGES[:, 0]) & (areas[:, None] <= _RANGES[:, 1])
    return flags


def places(group: Integers) -> Integers:
    """For each entry of the sorted ``group`` (N,), count the earlier entries in the same group."""
    return np.arange(len(group)) - np.searchsorted(group, group)


def matched(found: Found, objects: Objects) -> NDArray[np.int8]:
    """Return the outcome of each detection for each IoU threshold and area range, (D, 10, 4).

    In order of score, each detection is matched with the object in its group with the largest IoU. Objects
    that count take precedence over others, and the later object wins a tie. An object that is not shared is
    matched only once.
    """
    outside = ~in_ranges(found.boxes[:, 2] * found.boxes[:, 3])
    outcomes = np.repeat(np.where(outside, IGNORED, WRONG).astype(np.int8)[:, None], len(IOUS), 1)
    taken = np.zeros((len(objects.group), len(IOUS), len(AREAS)), bool)
    first = np.searchsorted(objects.group, found.group)
    pairs = np.searchsorted(objects.group, found.group, "right") - first
    ends = np.cumsum(pairs)
    start = 0
    while start < len(pairs):
        before = ends[start] - pairs[start]
        stop = max(int(np.searchsorted(ends, before + _PAIRS, "right")), start + 1)
        some, count = slice(start, stop), pairs[start:stop]
        rows = np.repeat(np.arange(start, stop), count)
        columns = np.arange(len(rows)) + np.repeat(first[some] - (ends[some] - count - before), count)
        _match(found, objects, rows, columns, outcomes, taken)
        start = stop
    return outcomes


def _match(
    found: Found,
    objects: Objects,
    rows: Integers,
    columns: Integers,
    outcomes: NDArray[np.int8],
    taken: Flags,
) -> None:
    """Match detections and objects, given the indices ``rows`` and ``columns`` of candidate pairs."""
    iou = _iou(found.boxes[rows], objects.boxes[columns], objects.crowd[columns])
    near = iou >= IOUS[0]
    rows, columns, iou = rows[near], columns[near], iou[near]
    # Groups are independent, so the best detections of all groups are matched first, then the second best, …
    those, inverse = np.unique(rows, return_inverse=True)
    turns = places(found.group[those])[inverse]
    order = np.lexsort((columns, iou, rows, turns))
    rows, columns, iou, turns = rows[order], columns[order], iou[order], turns[order]
    bounds = np.searchsorted(turns, np.arange(turns.max(initial=-1) + 2)).tolist()
    for begin, end in pairwise(bounds):
        row, column, size = rows[begin:end], columns[begin:end], end - begin
        free = (iou[begin:end, None, None] >= IOUS[:, None]) & ~taken[column]  # (pairs, 10, 4)
        rank = np.arange(size)[:, None] + size * objects.counts[column]
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        best = np.maximum.reduceat(np.where(free, rank[:, None], -1), starts)
        which, at, area = np.nonzero(best >= 0)
        best = best[which, at, area]
        outcomes[row[starts[which]], at, area] = np.where(best >= size, RIGHT, IGNORED)
        chosen = column[best % size]
        taken[chosen, at, area] = ~objects.shared[chosen]


def _iou(boxes: Floats, objects: Floats, crowd: Flags) -> Floats:
    """Compute the IoU of each pair of boxes or, for a crowd, the fraction of the first box inside it."""
    low = np.maximum(boxes[:, :2], objects[:, :2])
    high = np.minimum(boxes[:, :2] + boxes[:, 2:], objects[:, :2] + objects[:, 2:])
    inside = (high - low).clip(0).prod(1)
    area = boxes[:, 2] * boxes[:, 3]
    whole = np.where(crowd, area, area + objects[:, 2] * objects[:, 3] - inside)
    iou: Floats = np.divide(inside, whole, out=np.zeros_like(inside), where=inside > 0)
    return iou
