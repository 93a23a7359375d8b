"""Vary the size of the input: multi-scale training and rectangular evaluation.

Multi-scale training changes the size of the input to a random multiple of 32 every few steps, like
``random=1`` in Darknet. Anchors are in pixels of the current input. In rectangular evaluation, images with
similar aspect ratios share a smaller input with less padding, at the same scale as in the full input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankless.geometry.letterbox import fit, scaled
from rankless.randomness import generator

STRIDE = 32  # each side of a detector's input is a multiple of this number of pixels
_HAIR = 1e-9  # tolerance for rounding errors such as 320 * 1.1 = 352.00000000000006


@dataclass(frozen=True)
class StepSizes:
    """The size of the input at every training step."""

    size: tuple[int, int]  # the recipe's (H, W) in pixels, both multiples of 32
    spread: float  # sizes are between 1 / (1 + spread) and 1 + spread times size
    every: int  # number of consecutive steps with the same size
    seed: int

    def of(self, step: int) -> tuple[int, int]:
        """Return the (H, W) of the input at a step (from 0), sampled uniformly from :meth:`choices`."""
        choices = self.choices()
        return choices[int(generator(self.seed, "size", step // self.every).integers(len(choices)))]

    def choices(self) -> list[tuple[int, int]]:
        """Return all possible sizes (H, W), the smallest first.

        The longer side is any multiple of 32 that ``spread`` allows. The other side is the multiple of 32
        that best keeps the aspect ratio.
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


def by_aspect(sizes: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the indices of images, (N,), sorted by height divided by width, then by index.

    ``sizes`` are the heights and widths, (N, 2). An unknown size, (0, 0), counts as square.
    """
    known = np.where(sizes > 0, sizes, 1).astype(np.float64)
    return np.argsort(known[:, 0] / known[:, 1], kind="stable").astype(np.int64)


def tight(sizes: NDArray[np.integer], size: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest input (H, W), in multiples of 32, that fits images scaled for the full input.

    ``sizes`` are the heights and widths, (B, 2), and ``size`` is the (H, W) of the full input.
    """
    needed = [0, 0]
    for height, width in sizes.tolist():
        if height and width:
            scale = fit(height, width, size)
            needed = [max(needed[0], scaled(height, scale)), max(needed[1], scaled(width, scale))]
    if not any(needed):
        return size
    rows, columns = (-(-side // STRIDE) * STRIDE for side in needed)
    return rows, columns
