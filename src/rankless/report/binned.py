"""Numbers of a run's steps in bounded memory: each bin holds one step, or the mean of a range of steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

MOST = 1000
"""Bins; as many as a chart has pixels, so that a run of a million steps is read into a page of its size."""

_LARGEST = 1e100


@dataclass
class Bin:
    """Steps ``first`` to ``last``, and the sum and the count of each number in them."""

    first: int
    last: int
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, values: Mapping[str, float], counts: Mapping[str, int] | None = None) -> None:
        """Add numbers, or the sums of as many as ``counts`` says."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + (counts[name] if counts else 1)

    def mean(self, name: str) -> float | None:
        """The mean of a number; None where it does not occur."""
        count = self.counts.get(name, 0)
        return self.sums[name] / count if count else None


class Binned:
    """Takes the numbers of step after step; where there are more than :data:`MOST` bins, two become one."""

    def __init__(self, most: int = MOST) -> None:
        self.most, self.width = most, 1
        self.bins: list[Bin] = []
        self.names: dict[str, None] = {}

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add the numbers of a step; those that are not finite, or whose sum might not be, are left out.

        Args:
            step: from 1; not before the last one.
            values: by name.
        """
        finite = {name: value for name, value in values.items() if abs(value) < _LARGEST}
        self.names |= dict.fromkeys(finite)
        if not self.bins or step > self.bins[-1].last:
            first = (step - 1) // self.width * self.width + 1
            self.bins.append(Bin(first, first + self.width - 1))
        self.bins[-1].add(finite)
        while len(self.bins) > self.most:
            self._halve()

    def _halve(self) -> None:
        self.width *= 2
        bins, self.bins = self.bins, []
        for one in bins:
            first = (one.first - 1) // self.width * self.width + 1
            if not self.bins or self.bins[-1].first != first:
                self.bins.append(Bin(first, first + self.width - 1))
            self.bins[-1].add(one.sums, one.counts)

    def points(self, name: str) -> Iterator[tuple[float, float]]:
        """The step and the mean of each bin in which a number occurs; of a range of steps its middle."""
        for one in self.bins:
            mean = one.mean(name)
            if mean is not None:
                yield (one.first + one.last) / 2, mean

    def total(self, name: str) -> float:
        """The sum of a number over all steps."""
        return math.fsum(one.sums.get(name, 0.0) for one in self.bins)
