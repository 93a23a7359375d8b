"""Rectangular evaluation: images of like aspect share an input from which the gray is left out.

An image is as large on it as on the whole input; only the margin is smaller.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankless.data.augment.multi_scale import STRIDE
from rankless.geometry.letterbox import fit, scaled


def by_aspect(sizes: NDArray[np.integer]) -> NDArray[np.int64]:
    """The images' numbers sorted by height to width, equals by number.

    Args:
        sizes: height and width of each image in pixels, 0, 0 where it cannot be read (which counts as
            square); (N, 2).

    Returns:
        A permutation of 0..N-1, (N,).
    """
    known = np.where(sizes > 0, sizes, 1).astype(np.float64)
    return np.argsort(known[:, 0] / known[:, 1], kind="stable").astype(np.int64)


def tight(sizes: NDArray[np.integer], size: tuple[int, int]) -> tuple[int, int]:
    """The smallest input that holds all these images as large as the whole input shows them.

    Args:
        sizes: height and width of each in pixels; 0, 0 counts as nothing; (B, 2).
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
