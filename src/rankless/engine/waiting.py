"""The fraction of a run's time spent waiting for images, and advice if it is large."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from rankless.errors import counted
from rankless.runs.pace import Pace, speed_text

STEPS = 100
"""Advice is based on this many recent steps."""
MUCH = 0.2
"""Advice is given if more than this fraction of the time is spent waiting for images."""


class Waiting:
    """Measures the time of this rank's steps, including the time spent waiting for images."""

    def __init__(self, images: int) -> None:
        self.images, self.steps, self.seconds = images, 0, 0.0
        self.pace = Pace()
        self.recent: deque[tuple[float, float]] = deque(maxlen=STEPS)
        self.advised = False

    def step(self, timing: Mapping[str, float]) -> str:
        """Add the timing of a step, and return advice once per run, otherwise ""."""
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
            f"training spent {fraction:.0%} of the last {STEPS} steps waiting for images; increase workers "
            "or set data.cache to ram or disk (possible with --resume, because neither affects the weights)"
        )

    def summary(self) -> str:
        """Return a sentence about the speed of the run."""
        said = f"{counted(self.steps, 'step')} in {self.seconds:.1f} s (without evaluations)"
        speed = self.pace.images_per_second(self.images)
        if speed is None:
            return said
        return (
            f"{said}; after the first step, {speed_text(speed)} images/s and {self.pace.waited:.0%} of the "
            "time waiting for images"
        )
