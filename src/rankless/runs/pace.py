"""The speed of a run and the fraction of time spent waiting for images, used by all displays."""

from __future__ import annotations

_LONGEST = 1e10  # maximum seconds of a step, because a journal may contain anything


def speed_text(speed: float) -> str:
    """Format a speed in images per second as a short text."""
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"


class Pace:
    """The average speed of training steps, without the evaluations and checkpoints between them.

    The first step of a start is not counted, because loader processes start and PyTorch prepares its kernels
    during this step. ``begins`` tells whether the next step is the first one of a start.

    Attributes:
        steps, seconds: number and total duration of the counted steps.
        waiting: seconds of these steps spent waiting for images.
    """

    def __init__(self, *, begins: bool = True) -> None:
        self.begins = begins
        self.steps, self.seconds, self.waiting = 0, 0.0, 0.0

    def add(self, seconds: float, waited: float) -> None:
        """Add a step, given its duration in seconds and the fraction of it spent waiting for images."""
        begins, self.begins = self.begins, False
        if begins or not 0 <= seconds < _LONGEST or not 0 <= waited <= 1:
            return
        self.steps += 1
        self.seconds += seconds
        self.waiting += seconds * waited

    def images_per_second(self, images: float) -> float | None:
        """Return the images per second, given ``images`` per step, or None if no step was counted."""
        return self.steps * images / self.seconds if self.seconds else None

    @property
    def waited(self) -> float | None:
        """The fraction of the time spent waiting for images, or None if no step was counted."""
        return self.waiting / self.seconds if self.seconds else None
