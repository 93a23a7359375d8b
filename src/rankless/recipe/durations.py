"""Convert durations such as ``2000``, ``'5 epochs'`` and ``'80%'`` to steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class RunLength:
    """The length of a run, with conversions of durations to steps."""

    epochs: int
    images: int
    batch: int  # number of images per step

    @property
    def steps(self) -> int:
        """The number of steps in the run."""
        return -(-self.epochs * self.images // self.batch)

    def exact(self, duration: int | str) -> Fraction:
        """Return a duration in steps without rounding."""
        number, unit = _parts(duration)
        if unit == "%":
            return number / 100 * self.steps
        return number * self.images / self.batch if unit.startswith("epoch") else number

    def whole(self, duration: int | str) -> int:
        """Return a duration in steps, rounded up."""
        return math.ceil(self.exact(duration))

    def ends(self, step: int, every: int | str) -> bool:
        """Check whether a period of length ``every`` ends at ``step`` (from 1); False if ``every`` is 0."""
        period = self.exact(every)
        return bool(period) and step // period > (step - 1) // period

    def is_last(self, duration: int | str, epoch: int, step: int | None = None) -> bool:
        """Check whether an image is seen within the last ``duration`` of a run.

        For whole epochs, only ``epoch`` is compared, because an epoch may end in the middle of a step.
        ``epoch`` and ``step`` count from 0; by default, ``step`` is the first of the epoch.
        """
        number, unit = _parts(duration)
        if unit.startswith("epoch") and number.denominator == 1:
            return epoch >= self.epochs - number
        step = epoch * self.images // self.batch if step is None else step
        return step >= self.steps - self.exact(duration)


def _parts(duration: int | str) -> tuple[Fraction, str]:
    """Return a duration's number and unit: ``epoch``, ``epochs``, ``%``, or an empty string for steps."""
    if isinstance(duration, int):
        return Fraction(duration), ""
    number = duration.rstrip(" %abcdefghijklmnopqrstuvwxyz")
    return Fraction(number), duration[len(number) :].strip()
