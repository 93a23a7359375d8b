"""The score that chooses the best weights, and which of two is better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOWER_IS_BETTER = ("loss", "nll")
"""Scores of which the lowest is the best."""
_AUTO = ("AP", "top1")


def name_of_best(best: str, scores: Mapping[str, Any]) -> str | None:
    """The entry of ``scores`` that ``evaluate.best`` names; None where there is none.

    For ``auto`` a task of one's own names it, which a journal does not say: then it is the first number.
    """
    numbers = [name for name, value in scores.items() if isinstance(value, float | None)]
    wanted = [*_AUTO, *(name for name in numbers if name != "loss")] if best == "auto" else [best]
    return next((name for name in wanted if name in numbers), None)


def is_better(name: str, score: float, best: float | None) -> bool:
    """Check whether a score is better than the best so far."""
    if best is None:
        return True
    return score < best if name in LOWER_IS_BETTER else score > best
