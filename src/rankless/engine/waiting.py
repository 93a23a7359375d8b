"""The fraction of a run's time spent waiting for images, and advice if it is large."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from rankless.errors import counted
from rankless.runs.pace import Pace, speed_text

STEPS = 100
"""Number of steps before advice is given, because the first ones wait for the loader processes to start."""
MUCH = 0.2
"""Fraction of the time above which advice is given."""


class Waiting:
    """The time that this rank's steps took since the start, and the time they waited for images."""

    def __init__(self, images: int) -> None:
        self.images, self.steps, self.seconds = images, 0, 0.0
        self.pace = Pace()
        self.recent: deque[tuple[float, float]] = deque(maxlen=STEPS)
        self.advised = False

    def step(self, timing: Mapping[str, float]) -> str:
        """Count a step, given its timing in the journal; return advice once per run, else an empty string."""
        seconds, waited = timing["seconds"], timing["waited"]
        self.steps += 1
        self.seconds += seconds
        self.pace.add(seconds, waited)
        self.recent.append((seconds, seconds * waited))
        if self.advised or len(self.recent) < STEPS:
            return ""
        fraction = sum(w for _, w in self.recent) / max(sum(s for s, _ in self.recent), 1e-9)
        if fraction <= MUCH:
            return ""
        self.advised = True
        return (
            f"{fraction:.0%} of the last {STEPS} steps' time was spent waiting for images: more `workers` "
            "or data.cache (ram or disk) may help; neither changes the weights, so --resume also accepts them"
        )

    def summary(self) -> str:
        """Return a sentence about the speed for the end of the run."""
        said = f"{counted(self.steps, 'step', 'steps')} in {self.seconds:.1f} s, evaluations not counted"
        speed = self.pace.images_per_second(self.images)
        if speed is None:
            return said
        return (
            f"{said}; after the first, {speed_text(speed)} images/s and {self.pace.waited:.0%} of the time "
            "waiting for images"
        )
