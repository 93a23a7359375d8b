"""The bilinear resize of OpenCV (``INTER_LINEAR`` on uint8), bit for bit, and on any processor.

Each pixel is the mean of the four around a point, weighted in steps of 1/2048; nothing is averaged over what
lies between. A network that was trained behind this resize answers differently behind another one.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ONE = 2048  # the weight 1


def bilinear(image: Tensor, size: tuple[int, int], steps: tuple[float, float]) -> Tensor:
    """Resize an image.

    Args:
        image: uint8, (3, h, w).
        size: (H, W) of the result in pixels.
        steps: pixels of the image for each pixel of the result, down and across.

    Returns:
        uint8 (3, H, W).
    """
    height, width = image.shape[-2:]
    above, below, upper, lower = map(torch.from_numpy, _points(size[0], steps[0], height, clamped=False))
    before, behind, left, right = map(torch.from_numpy, _points(size[1], steps[1], width, clamped=True))
    used, places = torch.cat([above, below]).unique(return_inverse=True)
    lines = image.permute(1, 2, 0).index_select(0, used)  # (rows, w, 3), contiguous as it was decoded
    mixed = lines.index_select(1, before).int().mul_(left[:, None])
    mixed += lines.index_select(1, behind).int().mul_(right[:, None])
    mixed >>= 4
    upper_rows, lower_rows = (
        mixed.index_select(0, rows).mul_(weights[:, None, None]).bitwise_right_shift_(16)
        for rows, weights in zip(places.split(len(above)), (upper, lower), strict=True)
    )
    result = upper_rows.add_(lower_rows).add_(2).bitwise_right_shift_(2)
    return result.to(torch.uint8).permute(2, 0, 1).contiguous()


def _points(
    count: int, step: float, side: int, *, clamped: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Return the pixels before and behind each of ``count`` points on a side, and their weights.

    Beyond the border both are its pixel. If ``clamped``, as columns are, one of them has the whole weight.
    """
    at = ((np.arange(count) + 0.5) * step - 0.5).astype(np.float32)
    at = at.clip(0, side - 1) if clamped else at
    before = np.floor(at)
    part = at - before
    # Rounded each for itself: their sum may be a step off.
    first, second = (np.rint(one * np.float32(_ONE)).astype(np.int32) for one in (1 - part, part))
    pixel = before.astype(np.int64)
    return pixel.clip(0, side - 1), (pixel + 1).clip(0, side - 1), first, second
