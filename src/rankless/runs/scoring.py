"""The score that selects the best weights, and the comparison of two scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankless.task_kinds import KINDS

LOWER_IS_BETTER = ("loss", "nll")
"""Scores for which a lower value is better."""
_AUTO = tuple(kind.score for kind in KINDS)


def name_of_best(best: str, scores: Mapping[str, Any]) -> str | None:
    """Return the name of the score that ``evaluate.best`` selects, or None if there is none.

    The journal does not record which score of a custom task ``auto`` refers to, so the first score other than
    the loss is assumed.
    """
    numbers = [name for name, value in scores.items() if isinstance(value, float | None)]
    wanted = [*_AUTO, *(name for name in numbers if name != "loss")] if best == "auto" else [best]
    return next((name for name in wanted if name in numbers), None)


def is_better(name: str, score: float, best: float | None) -> bool:
    """Check whether a score is better than the best so far."""
    if best is None:
        return True
    return score < best if name in LOWER_IS_BETTER else score > best
