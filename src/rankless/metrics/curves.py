"""Compute precision and recall curves, and Pascal VOC's average precision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RECALLS = np.linspace(0, 1, 101)
"""Recalls at which COCO reads the precision."""
THRESHOLDS = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class ThresholdCurve:
    """Precision, recall and F1 of the predictions that score at least a threshold.

    Attributes:
        precision: at each of :data:`THRESHOLDS`, NaN if no prediction scores that high, (101,).
        recall, f1: at each of :data:`THRESHOLDS`, (101,).
        best: the threshold with the largest F1 (the highest such score); 0 without a correct prediction.
        at_best: precision, recall and F1 at ``best``.
    """

    precision: Floats
    recall: Floats
    f1: Floats
    best: float
    at_best: tuple[float, float, float]


def threshold_curve(scores: Floats, right: NDArray[np.bool_], truths: int) -> ThresholdCurve:
    """Compute precision, recall and F1 as functions of the threshold on ``scores`` (D,), which are in 0..1.

    ``truths`` is the number of ground-truth objects or images, at least 1.
    """
    order = np.argsort(-scores, kind="stable")
    falling, hits = scores[order], np.cumsum(right[order])
    count = np.searchsorted(-falling, -THRESHOLDS, side="right")  # number of predictions at each threshold
    found = np.concatenate([[0], hits])[count]
    precision = np.divide(found, count, out=np.full(len(count), np.nan), where=count > 0)
    f1 = 2 * found / (count + truths)
    last = np.flatnonzero(np.diff(falling, append=-1.0))  # the last prediction of each score
    best, at_best = 0.0, (0.0, 0.0, 0.0)
    if len(hits) and hits[-1]:
        f1_of_each = 2 * hits[last] / (last + 1 + truths)
        at = int(last[f1_of_each.argmax()])
        best = float(falling[at])
        at_best = (float(hits[at] / (at + 1)), float(hits[at] / truths), float(f1_of_each.max()))
    return ThresholdCurve(precision, found / truths, f1, best, at_best)


def precision_recall(scores: Floats, right: NDArray[np.bool_], truths: int) -> tuple[Floats, Floats]:
    """Compute precision (D,) and recall (D,) after each prediction, in order of descending score.

    Predictions with equal scores keep their order. ``truths`` is the number of ground-truth objects or
    images, at least 1.
    """
    hits = np.cumsum(right[np.argsort(-scores, kind="stable")])
    return hits / np.arange(1, len(hits) + 1), hits / truths


def interpolated(precision: Floats, recall: Floats) -> Floats:
    """Return the precision (101,) at :data:`RECALLS`: the best at that recall or above, as in cocoapi."""
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(recall, RECALLS, side="left")
    return np.concatenate([envelope, [0.0]])[np.minimum(at, len(envelope))]


def voc_average_precision(precision: Floats, recall: Floats) -> tuple[float, float]:
    """Compute Pascal VOC's AP: at 11 recalls (VOC 2007), and at all points (VOC 2010 and later).

    ``precision`` and ``recall`` hold the values after each prediction, (D,).
    """
    if not len(recall):
        return 0.0, 0.0
    # The devkit compares 0:0.1:1 with recalls that are fractions, and 3 / 10 must reach its third step.
    reached = recall[None, :] >= np.linspace(0, 1, 11)[:, None] - 1e-12
    eleven = np.where(reached, precision, 0.0).max(1).mean()
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(eleven), float((np.diff(recall, prepend=0.0) * envelope).sum())
