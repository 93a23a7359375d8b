"""The fraction of a run's time spent waiting for images, and advice if it is large."""

from __future__ import annotations

from collections import deque

STEPS = 100
"""Advice needs at least this many steps: the first ones wait for the loader processes to start."""
MUCH = 0.2
"""Advice is given above this fraction of the time."""


class Waiting:
    """The seconds of this rank, step by step.

    Attributes:
        seconds, waited: of all steps so far, and those of them spent waiting.
    """

    def __init__(self) -> None:
        self.seconds = self.waited = 0.0
        self.recent: deque[tuple[float, float]] = deque(maxlen=STEPS)
        self.advised = False

    def step(self, seconds: float, waited: float) -> str:
        """Count one step; the advice to give now, once in a run at most."""
        self.seconds += seconds
        self.waited += waited
        self.recent.append((seconds, waited))
        if self.advised or len(self.recent) < STEPS:
            return ""
        fraction = sum(w for _, w in self.recent) / max(sum(s for s, _ in self.recent), 1e-9)
        if fraction <= MUCH:
            return ""
        self.advised = True
        return (
            f"{fraction:.0%} of the last {STEPS} steps' time went by waiting for images: more `workers`, or "
            "data.cache (ram or disk), may help; neither changes the weights, so --resume takes them too"
        )

    def summary(self) -> str:
        """A sentence for the end."""
        fraction = self.waited / self.seconds if self.seconds else 0.0
        return f"{fraction:.0%} of {self.seconds:.1f} s went by waiting for images"
