"""Multi-scale training: the size of a step's input is a function of the step.

As with Darknet's ``random=1`` every few steps another multiple of 32 is drawn, and anchors stay pixels of
whatever the input is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rankless.randomness import generator

STRIDE = 32
"""Pixels: sides of a detector's input are multiples of it."""
_HAIR = 1e-9  # 320 * 1.1 is 352.00000000000006


@dataclass(frozen=True)
class StepSizes:
    """The input's size of every step.

    Attributes:
        size: the recipe's (H, W) in pixels, multiples of 32.
        spread: sizes reach from ``1 / (1 + spread)`` to ``1 + spread`` times that.
        every: so many steps have the same size.
        seed: the recipe's.
    """

    size: tuple[int, int]
    spread: float
    every: int
    seed: int

    def of(self, step: int) -> tuple[int, int]:
        """(H, W) in pixels of a step's input (from 0): each of :meth:`choices` is as likely."""
        choices = self.choices()
        return choices[int(generator(self.seed, "size", step // self.every).integers(len(choices)))]

    def choices(self) -> list[tuple[int, int]]:
        """All sizes (H, W), the smallest first.

        The longer side is each multiple of 32 in reach; the other the multiple in reach that keeps the
        aspect best.
        """
        height, width = self.size
        longer = max(height, width)
        return [
            (self._beside(height, side / longer), self._beside(width, side / longer))
            for side in self._multiples(longer)
        ]

    def _multiples(self, side: int) -> range:
        first = math.ceil(side / (1 + self.spread) / STRIDE - _HAIR)
        last = math.floor(side * (1 + self.spread) / STRIDE + _HAIR)
        return range(first * STRIDE, last * STRIDE + 1, STRIDE)

    def _beside(self, side: int, scale: float) -> int:
        near = round(side * scale / STRIDE) * STRIDE
        allowed = self._multiples(side)
        return min(max(near, allowed[0]), allowed[-1])
