"""The curves and the calibration that the report shows for a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankless.metrics.curves import interpolated, precision_recall, rounded, threshold_curve
from rankless.metrics.detection_details import most_frequent

BINS = 10
"""Number of confidence ranges in the calibration."""


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
