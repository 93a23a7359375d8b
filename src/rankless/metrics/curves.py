"""Precision and recall curves, and Pascal VOC's average precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RECALLS = np.linspace(0, 1, 101)
"""The recalls at which COCO's metric evaluates the precision."""
THRESHOLDS = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class ThresholdCurve:
    """Precision, recall and F1 as functions of the score threshold.

    Attributes:
        precision: precision at each threshold in :data:`THRESHOLDS`, (101,); NaN if no score reaches it.
        recall, f1: recall and F1 at each threshold in :data:`THRESHOLDS`, (101,).
        best: the threshold with the largest F1 (the highest in a tie); 0 if no prediction is correct.
        at_best: precision, recall and F1 at ``best``.
    """

    precision: Floats
    recall: Floats
    f1: Floats
    best: float
    at_best: tuple[float, float, float]

    def as_json(self) -> dict[str, Any]:
        """Return the curve as a JSON-compatible dict."""
        curves = {"precision": self.precision, "recall": self.recall, "f1": self.f1}
        return {
            "best": self.best,
            "at_best": list(self.at_best),
            **{name: rounded(values) for name, values in curves.items()},
        }


def threshold_curve(scores: Floats, right: NDArray[np.bool_], truths: int) -> ThresholdCurve:
    """Compute precision, recall and F1 as functions of the score threshold.

    ``right`` marks the correct predictions, and ``truths`` is the number of objects or images, at least 1.
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

    Predictions with equal scores keep their order. For the arguments, see :func:`threshold_curve`.
    """
    hits = np.cumsum(right[np.argsort(-scores, kind="stable")])
    return hits / np.arange(1, len(hits) + 1), hits / truths


def interpolated(precision: Floats, recall: Floats) -> Floats:
    """Return the highest precision at or above each recall in :data:`RECALLS`, (101,), as in cocoapi."""
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(recall, RECALLS, side="left")
    return np.concatenate([envelope, [0.0]])[np.minimum(at, len(envelope))]


def rounded(values: Floats, digits: int = 5) -> list[float | None]:
    """Round the values for JSON, with None in place of NaN."""
    return [None if value != value else round(value, digits) for value in values.tolist()]


def voc_average_precision(precision: Floats, recall: Floats) -> tuple[float, float]:
    """Compute Pascal VOC's AP at 11 recalls (VOC 2007) and at all recalls (VOC 2010 and later).

    The arguments are the results of :func:`precision_recall`.
    """
    if not len(recall):
        return 0.0, 0.0
    # The tolerance ensures that a recall of 3 / 10 reaches the step at 0.3, as in the devkit.
    reached = recall[None, :] >= np.linspace(0, 1, 11)[:, None] - 1e-12
    eleven = np.where(reached, precision, 0.0).max(1).mean()
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(eleven), float((np.diff(recall, prepend=0.0) * envelope).sum())
