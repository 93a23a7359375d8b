"""The pace of a training and the fraction of time it waits: one definition for all displays."""

from __future__ import annotations

_LONGEST = 1e10  # seconds of a step; a journal may hold anything


def speed_text(speed: float) -> str:
    """Return the images per second in few characters."""
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"


class Pace:
    """Sums over training steps; evaluations and checkpoints lie between steps and do not count.

    The first step of a start does not count either: loader processes start in it, and PyTorch prepares its
    kernels.

    Args:
        begins: whether the next step is the first one of a start.

    Attributes:
        steps, seconds: that count.
        waiting: of those seconds, spent waiting for images.
    """

    def __init__(self, *, begins: bool = True) -> None:
        self.begins = begins
        self.steps, self.seconds, self.waiting = 0, 0.0, 0.0

    def add(self, seconds: float, waited: float) -> None:
        """Add a step.

        Args:
            seconds: that it took.
            waited: the fraction of them spent waiting for images, as in the journal.
        """
        begins, self.begins = self.begins, False
        if begins or not 0 <= seconds < _LONGEST or not 0 <= waited <= 1:
            return
        self.steps += 1
        self.seconds += seconds
        self.waiting += seconds * waited

    def images_per_second(self, images: float) -> float | None:
        """The speed of all ranks together with ``images`` a step; None where no step counts."""
        return self.steps * images / self.seconds if self.seconds else None

    @property
    def waited(self) -> float | None:
        """The fraction of the time spent waiting for images; None where no step counts."""
        return self.waiting / self.seconds if self.seconds else None
