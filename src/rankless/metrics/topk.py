"""The accuracy, per-class scores and confusion matrix of a classifier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rankless.structures import Scores

MOST_CONFUSED = 100
"""Maximum number of classes for which evaluations write a confusion matrix to the journal."""


def score_names(classes: int) -> tuple[str, ...]:
    """Return the names of the scores that :func:`topk_scores` computes."""
    return ("top1", *(("top5",) if classes > 5 else ()), "nll", "precision", "recall", "f1")


def topk_scores(log_probabilities: Tensor, labels: Tensor, class_names: Sequence[str]) -> Scores:
    """Score log-probabilities (N, C) against the true classes ``labels`` (N,).

    Classes with equal probabilities are ranked by class id.

    Returns:
        ``top1``; ``top5`` if there are more than five classes; ``nll``, the mean of -log p of the true class,
        or None if it is infinite; ``precision``, ``recall`` and ``f1``, means over the classes that occur;
        ``per_class``, with ``precision``, ``recall``, ``f1`` and ``support`` (number of images) by class
        name; and ``confusion``, (C, C), with a row per true class and a column per predicted class. The
        precision of a class that is never predicted is 0. Recall and F1 of a class that never occurs are
        None.
    """
    count, classes = log_probabilities.shape
    if labels.shape != (count,) or len(class_names) != classes or not count:
        raise ValueError(
            f"got {count} × {classes} predictions, {len(labels)} labels and {len(class_names)} class names"
        )
    truth = labels.numpy()
    if truth.min() < 0 or truth.max() >= classes:
        raise ValueError(
            f"the labels are {truth.min()} to {truth.max()}, but there are only {classes} classes"
        )
    logs = log_probabilities.double().numpy()
    of_truth = logs[np.arange(count), truth]  # (N,)
    ahead = logs > of_truth[:, None]
    ahead |= (logs == of_truth[:, None]) & (np.arange(classes) < truth[:, None])
    rank = np.where(np.isnan(logs).any(1), classes, ahead.sum(1))  # rank 0 is the best; NaN is never right
    predicted = logs.argmax(1)  # the first of equal values
    confusion = np.bincount(truth * classes + predicted, minlength=classes**2).reshape(classes, classes)
    scores: Scores = {"top1": float((rank < 1).mean())}
    if classes > 5:
        scores["top5"] = float((rank < 5).mean())
    nll = float(-of_truth.mean())
    scores["nll"] = nll if math.isfinite(nll) else None
    scores |= _by_class(confusion, class_names)
    if classes <= MOST_CONFUSED:
        scores["confusion"] = confusion.tolist()
    return scores


def _by_class(confusion: NDArray[np.int64], class_names: Sequence[str]) -> dict[str, Any]:
    """Compute the scores per class from ``confusion`` (C, C), and their means over the classes that occur."""
    right, support, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    precision = right / np.maximum(predicted, 1)
    recall = right / np.maximum(support, 1)
    f1 = 2 * right / np.maximum(support + predicted, 1)
    per_class: dict[str, dict[str, float | int | None]] = {}
    for label, name in enumerate(class_names):
        occurs = bool(support[label])
        per_class[f"{name} ({label})" if name in per_class else name] = {
            "precision": float(precision[label]) if occurs or predicted[label] else None,
            "recall": float(recall[label]) if occurs else None,
            "f1": float(f1[label]) if occurs else None,
            "support": int(support[label]),
        }
    means = {"precision": precision, "recall": recall, "f1": f1}
    return {name: float(each[support > 0].mean()) for name, each in means.items()} | {"per_class": per_class}
