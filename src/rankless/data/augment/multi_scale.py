"""The input's size where it is not fixed: multi-scale training and rectangular evaluation.

Multi-scale: as with Darknet's ``random=1`` another multiple of 32 is drawn every few steps, and anchors stay
pixels of whatever the input is. Rectangular: images of like aspect share an input from which the gray is left
out; an image is as large on it as on the whole input, only the margin is smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankless.geometry.letterbox import fit, scaled
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
        """Return (H, W) in pixels of a step's input (from 0): each of :meth:`choices` is as likely."""
        choices = self.choices()
        return choices[int(generator(self.seed, "size", step // self.every).integers(len(choices)))]

    def choices(self) -> list[tuple[int, int]]:
        """Return all sizes (H, W), the smallest first.

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


def by_aspect(sizes: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the images' indices sorted by height to width, equals by index.

    Args:
        sizes: height and width of each image in pixels, 0, 0 where it cannot be read (which counts as
            square); (N, 2).

    Returns:
        A permutation of 0..N-1, (N,).
    """
    known = np.where(sizes > 0, sizes, 1).astype(np.float64)
    return np.argsort(known[:, 0] / known[:, 1], kind="stable").astype(np.int64)


def tight(sizes: NDArray[np.integer], size: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest input that holds all these images as large as the whole input shows them.

    Args:
        sizes: height and width of each in pixels; 0, 0 takes no room; (B, 2).
        size: the whole input's (H, W) in pixels, multiples of 32.

    Returns:
        (H, W) in pixels, multiples of 32.
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
