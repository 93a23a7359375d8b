"""The one way in which a plan takes a time from several, wherever it measures."""

from __future__ import annotations

from collections.abc import Iterable


def quick(seconds: Iterable[float]) -> float:
    """The time that a quarter does not exceed: less than others' work on the machine adds to the median."""
    ordered = sorted(seconds)
    return ordered[(len(ordered) - 1) // 4]
