"""Letterboxing, the preprocessing that training, evaluation and prediction share.

The image is resized without changing its aspect ratio, and pasted onto a gray input. The exact scale is used
instead of a rounded size, so ``input = source * scale + (left, top)`` is exact, and boxes lose no precision.
Without antialiasing, the size is rounded as in Darknet, which gives each side its own scale. Augmented images
keep the exact scale, as in Darknet's training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rankless.structures import Letterbox

_ONE = 2048  # fixed-point representation of a weight of 1


def bilinear(image: Tensor, size: tuple[int, int], steps: tuple[float, float]) -> Tensor:
    """Resize an image, uint8 (3, h, w), bilinearly without antialiasing.

    ``size`` is the (H, W) of the result. ``steps`` are the vertical and horizontal distances between its
    pixels, in pixels of the image.
    """
    height, width = image.shape[-2:]
    above, below, upper, lower = _points(size[0], steps[0], height, clamped=False)
    before, behind, left, right = _points(size[1], steps[1], width, clamped=True)
    used, places = np.unique(np.concatenate((above, below)), return_inverse=True)
    lines = image.permute(1, 2, 0).numpy().take(used, 0).reshape(len(used), -1)  # (rows, w * 3), as decoded

    def columns(pixels: NDArray[np.int64], weights: NDArray[np.int32]) -> Tensor:
        # For bytes, NumPy's take is four times as fast as PyTorch's.
        values = (3 * pixels[:, None] + np.arange(3)).ravel()
        return torch.from_numpy(lines.take(values, 1)).int().mul_(torch.from_numpy(weights.repeat(3)))

    mixed = columns(before, left).add_(columns(behind, right)).bitwise_right_shift_(4)
    upper_rows, lower_rows = (
        mixed.index_select(0, torch.from_numpy(rows)).mul_(torch.from_numpy(weights)[:, None])
        for rows, weights in zip(np.split(places, 2), (upper, lower), strict=True)
    )
    result = upper_rows.bitwise_right_shift_(16).add_(lower_rows.bitwise_right_shift_(16)).add_(2)
    return result.bitwise_right_shift_(2).to(torch.uint8).view(*size, 3).permute(2, 0, 1)


def _points(
    count: int, step: float, side: int, *, clamped: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Return the pixels before and after each of ``count`` points on a side, and their weights.

    Beyond the border, both pixels are the border pixel. If ``clamped``, one of them has the full weight.
    """
    at = ((np.arange(count) + 0.5) * step - 0.5).astype(np.float32)
    at = at.clip(0, side - 1) if clamped else at
    before = np.floor(at)
    part = at - before
    # The weights are rounded separately, so their sum may be off by one.
    first, second = (np.rint(one * np.float32(_ONE)).astype(np.int32) for one in (1 - part, part))
    pixel = before.astype(np.int64)
    return pixel.clip(0, side - 1), (pixel + 1).clip(0, side - 1), first, second


GRAY = 114
Fit = Literal["letterbox", "stretch"]


@dataclass(frozen=True)
class Placing:
    """Settings for placing images on the network's input.

    Attributes:
        antialias: whether downsampling averages all source pixels; otherwise, it reads the four pixels around
            each point, like OpenCV's bilinear resize.
        gray: value of the padding, 0..255; Darknet's letterbox uses 128.
    """

    antialias: bool = True
    gray: int = GRAY


USUAL = Placing()
_NUDGE = 1 + 2**-40  # otherwise, 640 * (416 / 640) may be 415.99…, and the image one row too short


def letterbox(
    image: Tensor, size: tuple[int, int], within: tuple[int, int] | None = None, placing: Placing = USUAL
) -> tuple[Tensor, Letterbox]:
    """Fit an image, uint8 (3, h, w), into the center of an input of ``size`` (H, W).

    Returns the input and the placement of the image. ``within`` is the (H, W) to fit the image into if
    ``size`` omits some of the padding. An image that already has this size is not copied.
    """
    height, width = image.shape[-2:]
    scale = fit(height, width, within or size)
    left, top = centered(height, width, size, scale)
    if placing.antialias:
        return place(image, size, scale, left, top, placing)
    # As in Darknet, the resized image has a rounded size, so the scales of the two sides differ.
    inner = scaled(height, scale), scaled(width, scale)
    patch, where = stretched(image, inner, placing)
    return paste(patch, (left, top), size, placing), replace(where, left=float(left), top=float(top))


def whole(
    image: Tensor,
    size: tuple[int, int],
    how: Fit,
    within: tuple[int, int] | None = None,
    placing: Placing = USUAL,
) -> tuple[Tensor, Letterbox]:
    """Fit an image (3, h, w) into the network's input with :func:`letterbox` or :func:`stretched`."""
    if how == "letterbox":
        return letterbox(image, size, within, placing)
    return stretched(image, size, placing)


def stretched(image: Tensor, size: tuple[int, int], placing: Placing = USUAL) -> tuple[Tensor, Letterbox]:
    """Stretch an image (3, h, w) to an input of ``size``, as Darknet does by default."""
    height, width = image.shape[-2:]
    where = Letterbox(1.0, 0.0, 0.0, height, width, (size[1] / width, size[0] / height))
    if (height, width) == size:
        return image, where
    if not placing.antialias:
        return bilinear(image, size, (height / size[0], width / size[1])), where
    return F.interpolate(_rows_first(image), size=size, mode="bilinear", antialias=True)[0], where


def fit(height: int, width: int, size: tuple[int, int]) -> float:
    """Return the largest scale at which an image fits into ``size`` (H, W)."""
    return min(size[0] / height, size[1] / width)


def centered(height: int, width: int, size: tuple[int, int], scale: float) -> tuple[int, int]:
    """Return the offset (left, top) in whole pixels that centers the scaled image. It may be negative."""
    return (size[1] - scaled(width, scale)) // 2, (size[0] - scaled(height, scale)) // 2


def place(
    image: Tensor, size: tuple[int, int], scale: float, left: int, top: int, placing: Placing = USUAL
) -> tuple[Tensor, Letterbox]:
    """Scale an image (3, h, w), paste it onto the gray input at (left, top), and crop it to the input.

    Only the visible part is resized, and its corner is placed at a whole pixel. If the image extends beyond
    the left or top edge, the returned offset therefore differs from ``left`` and ``top`` by less than a
    pixel.
    """
    height, width = image.shape[-2:]
    if (height, width) == size and (scale, left, top) == (1.0, 0, 0):
        return image, Letterbox(1.0, 0.0, 0.0, height, width)
    part, corner, where = visible_part(image, size, scale, left, top)
    return paste(resized(part, scale, placing), corner, size, placing), where


def visible_part(
    image: Tensor, size: tuple[int, int], scale: float, left: int, top: int
) -> tuple[Tensor, tuple[int, int], Letterbox]:
    """Return the part of an image that :func:`place` shows, its (x, y) on the input, and the placement.

    The part is a view (3, h', w') that still has to be scaled.
    """
    height, width = image.shape[-2:]
    x0, x1, x = _visible(width, size[1], scale, left)
    y0, y1, y = _visible(height, size[0], scale, top)
    where = Letterbox(scale, x - x0 * scale, y - y0 * scale, height, width)
    return image[:, y0:y1, x0:x1], (x, y), where


def paste(patch: Tensor, corner: tuple[int, int], size: tuple[int, int], placing: Placing = USUAL) -> Tensor:
    """Paste a patch (3, h, w) onto a new gray input, uint8 (3, H, W), in the same memory format."""
    if patch.is_contiguous():
        canvas = torch.full((3, *size), placing.gray, dtype=torch.uint8)
    else:
        canvas = torch.full((*size, 3), placing.gray, dtype=torch.uint8).movedim(-1, 0)
    lay(canvas, patch, corner)
    return canvas


def lay(canvas: Tensor, patch: Tensor, corner: tuple[int, int]) -> None:
    """Copy a patch onto a canvas at ``corner`` (x, y), cropped to the canvas. Both are uint8 (3, H, W)."""
    x, y = corner
    cut = patch.numpy()[:, max(0, -y) :, max(0, -x) :]  # PyTorch takes ten times as long to slice
    onto = canvas.numpy()[:, max(0, y) :, max(0, x) :]
    rows, columns = min(cut.shape[1], onto.shape[1]), min(cut.shape[2], onto.shape[2])
    onto[:, :rows, :columns] = cut[:, :rows, :columns]


def in_source(where: Letterbox, reduced: int, source: tuple[int, int] | None) -> Letterbox:
    """Convert the placement of an image decoded at 1/``reduced`` of its size to that of the full image.

    ``source`` is the (H, W) of the full image in pixels, or None if the image was not reduced.
    """
    if reduced == 1 or source is None:
        return where
    return replace(where, scale=where.scale / reduced, height=source[0], width=source[1])


def to_input(boxes: Tensor, letterbox: Letterbox) -> Tensor:
    """Convert boxes (..., 4), xyxy, from source pixels to input pixels without clipping."""
    placed = boxes.numpy() * letterbox.scale  # for ten boxes, PyTorch takes three times as long
    if letterbox.stretch != (1.0, 1.0):
        placed = placed * np.array(letterbox.stretch * 2, placed.dtype)
    return torch.from_numpy(placed + np.array((letterbox.left, letterbox.top) * 2, placed.dtype))


def to_source(boxes: Tensor, letterbox: Letterbox) -> Tensor:
    """Convert boxes (..., 4), xyxy, from input pixels to source pixels without clipping."""
    lifted = torch.empty_like(boxes)
    x, y = (letterbox.scale * factor for factor in letterbox.stretch)
    lifted[..., 0::2] = (boxes[..., 0::2] - letterbox.left) / x
    lifted[..., 1::2] = (boxes[..., 1::2] - letterbox.top) / y
    return lifted


def _visible(side: int, input_side: int, scale: float, offset: int) -> tuple[int, int, int]:
    """Return the visible range [first, last) of one side, and its position on the input.

    A margin as wide as the filter is added at both ends, so that the crop has no visible edge.
    """
    margin = 2 + math.ceil(1 / scale)
    first = max(0, math.floor(-offset / scale) - margin)
    last = min(side, math.ceil((input_side - offset) / scale) + margin)
    # A shift can move a small image off the input. Then one pixel is resized and cropped away.
    first, last = min(first, side - 1), max(last, 1)
    return first, max(last, first + 1), round(offset + first * scale)


def resized(image: Tensor, scale: float, placing: Placing = USUAL) -> Tensor:
    """Scale an image, uint8 (3, h, w), by an exact factor. Sides are rounded down, but at least 1."""
    if scale == 1.0:
        return image
    new = [scaled(side, scale) for side in image.shape[-2:]]
    if not placing.antialias:
        return bilinear(image, (new[0], new[1]), (1 / scale, 1 / scale))
    if min(int(side * scale * _NUDGE) for side in image.shape[-2:]) == 0:
        return F.interpolate(_rows_first(image), size=new, mode="bilinear", antialias=True)[0]
    factors = [scale * _NUDGE] * 2
    return F.interpolate(_rows_first(image), scale_factor=factors, mode="bilinear", antialias=True)[0]


def _rows_first(image: Tensor) -> Tensor:
    """Convert an image to channels-last, which PyTorch resizes twice as fast."""
    return image.permute(1, 2, 0).contiguous()[None].permute(0, 3, 1, 2)


def scaled(side: int, scale: float) -> int:
    """Return the scaled length of a side in pixels, rounded down, but at least 1."""
    return max(1, int(side * scale * _NUDGE))
