"""The details that the report shows: for a detector, at an IoU of 0.5 and in addition to COCO's scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankless.metrics.box_matching import IOU, ImageBoxes, Matches, confusion, match
from rankless.metrics.coco_matching import IGNORED, RIGHT
from rankless.metrics.curves import (
    interpolated,
    precision_recall,
    rounded,
    threshold_curve,
    voc_average_precision,
)
from rankless.metrics.topk import MOST_CONFUSED

SIDES = (0, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
"""Lower bounds of the object size ranges. A size is the square root of an area, in pixels."""
SHOWN_PAIRS = 50
"""Maximum number of confusions listed instead of the matrix if there are many classes."""
BINS = 10
"""Number of confidence ranges in the calibration."""
Integers = NDArray[np.int64]


def detection_details(images: Sequence[ImageBoxes], classes: int) -> tuple[dict[str, Any], Matches]:
    """Match the detections in a data set, and compute the details that the report shows.

    The first result is a JSON-compatible dict, whose entries are described in docs/report.md.
    """
    matches = match(images)
    truths = np.bincount(matches.truth_label, minlength=classes)
    details: dict[str, Any] = {"images": len(images), "iou": IOU, "truths": truths.tolist()}
    if not truths.sum():
        return details, matches
    clear = matches.coco != IGNORED
    curve = threshold_curve(matches.score[clear], matches.coco[clear] == RIGHT, int(truths.sum()))
    details["thresholds"] = curve.as_json()
    details |= _by_class(matches, truths, curve.best)
    details["sizes"] = _by_size(matches, curve.best)
    details |= confusion_entry(confusion(images, curve.best, classes))
    return details, matches


def _by_class(matches: Matches, truths: Integers, threshold: float) -> dict[str, Any]:
    """Compute the ``pr``, ``pascal`` and ``at_best`` entries of the details."""
    curves: list[list[float | None] | None] = [None] * len(truths)
    pascal: list[tuple[float, float] | None] = [None] * len(truths)
    at_best: list[list[float | None] | None] = [None] * len(truths)
    with_curve = set(most_frequent(truths))
    order = np.argsort(matches.label, kind="stable")  # class by class, each in the order of the images
    bounds = np.searchsorted(matches.label[order], np.arange(len(truths) + 1))
    for label, count in enumerate(truths.tolist()):
        if not count:
            continue
        rows = order[bounds[label] : bounds[label + 1]]
        coco, by_voc = (rows[rule[rows] != IGNORED] for rule in (matches.coco, matches.pascal))
        right = matches.coco[coco] == RIGHT
        if label in with_curve:
            curve = interpolated(*precision_recall(matches.score[coco], right, count))
            curves[label] = rounded(curve)
        right_by_voc = matches.pascal[by_voc] == RIGHT
        pascal[label] = voc_average_precision(*precision_recall(matches.score[by_voc], right_by_voc, count))
        confident = matches.score[coco] >= threshold
        hits, answers = int((right & confident).sum()), int(confident.sum())
        at_best[label] = [hits / answers if answers else None, hits / count]
    known = [pair for pair in pascal if pair is not None]
    means = {name: float(np.mean([pair[at] for pair in known])) for at, name in enumerate(("AP11", "AP"))}
    return {"pr": curves, "pascal": {**means, "per_class": pascal}, "at_best": at_best}


def _by_size(matches: Matches, threshold: float) -> dict[str, list[int]]:
    place = np.searchsorted(SIDES, np.sqrt(matches.truth_area.clip(0)), side="right") - 1
    found = place[matches.truth_score >= max(threshold, 0)]
    ever = place[matches.truth_score >= 0]
    return {
        "sides": list(SIDES),
        **{
            name: np.bincount(which, minlength=len(SIDES)).tolist()
            for name, which in (("truths", place), ("found", found), ("found_at_any", ever))
        },
    }


def most_frequent(truths: Integers) -> list[int]:
    """Return the most frequent classes, for which the report draws curves."""
    return [int(label) for label in np.argsort(-truths, kind="stable")[:MOST_CONFUSED]]


def confusion_entry(matrix: Integers) -> dict[str, Any]:
    """Return the confusion matrix or, for many classes, only the most frequent confusions."""
    if len(matrix) <= MOST_CONFUSED + 1:
        return {"confusion": matrix.tolist()}
    off = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-off, axis=None, kind="stable")[:SHOWN_PAIRS]
    pairs = [(int(at) // len(off), int(at) % len(off)) for at in order]
    return {"confused": [[row, column, int(off[row, column])] for row, column in pairs if off[row, column]]}


def classification_details(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> dict[str, Any]:
    """Compute the details that the report shows from probabilities (N, C) and true classes (N,).

    The predicted class is the most likely one, and its probability is the confidence. There must be at least
    one image. The entries of the returned JSON-compatible dict are described in docs/report.md.
    """
    classes = probabilities.shape[1]
    answers, confidence = probabilities.argmax(1), probabilities.max(1)
    right = answers == truth
    truths = np.bincount(truth, minlength=classes)
    curve = threshold_curve(confidence, right, len(truth))
    pr: list[list[float | None] | None] = [None] * classes
    for label in most_frequent(truths):
        if truths[label]:
            of_class = precision_recall(probabilities[:, label], truth == label, int(truths[label]))
            pr[label] = rounded(interpolated(*of_class))
    return {
        "images": len(truth),
        "truths": truths.tolist(),
        "thresholds": curve.as_json(),
        "pr": pr,
        "calibration": _calibration(confidence, right),
    }


def _calibration(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> dict[str, Any]:
    """Compare confidence and accuracy (Guo et al., "On Calibration of Modern Neural Networks", 2017)."""
    place = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(place, minlength=BINS)
    sums = [np.bincount(place, weights=values, minlength=BINS) for values in (confidence, right)]
    mean, accuracy = (np.divide(each, count, out=np.full(BINS, np.nan), where=count > 0) for each in sums)
    error = float(np.nansum(np.abs(accuracy - mean) * count) / len(right))
    return {
        "count": count.tolist(),
        "confidence": rounded(mean),
        "accuracy": rounded(accuracy),
        "error": error,
    }
