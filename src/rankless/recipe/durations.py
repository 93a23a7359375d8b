"""Durations in steps: the meaning of ``2000``, ``'5 epochs'`` and ``'80%'``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


def epochs_of(duration: int | str) -> Fraction | None:
    """Return the epochs that a duration is given in; None for steps and fractions of the run."""
    number, unit = _parts(duration)
    return number if unit.startswith("epoch") else None


@dataclass(frozen=True)
class RunLength:
    """The length of a run.

    Attributes:
        epochs: passes over the training images.
        images: how many training images there are.
        batch: images in a step.
    """

    epochs: int
    images: int
    batch: int

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return -(-self.epochs * self.images // self.batch)

    def exact(self, duration: int | str) -> Fraction:
        """Return a duration in steps, not rounded."""
        number, unit = _parts(duration)
        if unit == "%":
            return number / 100 * self.steps
        return number * self.images / self.batch if unit.startswith("epoch") else number

    def whole(self, duration: int | str) -> int:
        """Return the number of steps after which a duration has passed."""
        return math.ceil(self.exact(duration))

    def ends(self, step: int, every: int | str) -> bool:
        """Check whether one of the periods of a length ends with ``step`` (from 1); none has length 0."""
        period = self.exact(every)
        return bool(period) and step // period > (step - 1) // period

    def is_last(self, duration: int | str, epoch: int, step: int | None = None) -> bool:
        """Check whether an image is seen in the last part of a run.

        Whole epochs end with an image, which may stand in the middle of a step.

        Args:
            duration: of that part.
            epoch: of the image, from 0.
            step: in which it is seen, from 0; by default the first of its epoch.
        """
        epochs = epochs_of(duration)
        if epochs is not None and epochs.denominator == 1:
            return epoch >= self.epochs - epochs
        step = epoch * self.images // self.batch if step is None else step
        return step >= self.steps - self.exact(duration)


def _parts(duration: int | str) -> tuple[Fraction, str]:
    """Return number and unit: ``epoch``, ``epochs``, ``%``, or nothing for steps."""
    if isinstance(duration, int):
        return Fraction(duration), ""
    number = duration.rstrip(" %abcdefghijklmnopqrstuvwxyz")
    return Fraction(number), duration[len(number) :].strip()
