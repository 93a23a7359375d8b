"""How an image is placed on the network's input: one preprocessing for training, evaluation and prediction.

The image keeps its aspect, is resized (bilinear, antialiased, on uint8) and lies on gray 114. The resize
takes the scale itself, not a rounded size, so ``input = source * scale + (left, top)`` holds exactly in both
directions and a box loses nothing on the way.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rankless.structures import Letterbox

GRAY = 114
Fit = Literal["letterbox", "stretch"]
_NUDGE = 1 + 2**-40  # 640 * (416 / 640) may come out as 415.99…; the placed image is then one row short


def letterbox(
    image: Tensor, size: tuple[int, int], within: tuple[int, int] | None = None
) -> tuple[Tensor, Letterbox]:
    """The whole image as large as it fits, in the middle of the input.

    Args:
        image: uint8, (3, h, w).
        size: the input's (H, W) in pixels.
        within: the (H, W) that the image is made to fit, of which ``size`` leaves out gray; None is
            ``size``.

    Returns:
        The input, uint8 (3, H, W), and where the image lies on it. An image of the right size is
        returned as it is.
    """
    height, width = image.shape[-2:]
    scale = fit(height, width, within or size)
    return place(image, size, scale, *centerd(height, width, size, scale))


def whole(
    image: Tensor, size: tuple[int, int], how: Fit, within: tuple[int, int] | None = None
) -> tuple[Tensor, Letterbox]:
    """The whole image on the input, as ``data.fit`` says: :func:`letterbox` or :func:`stretched`."""
    return letterbox(image, size, within) if how == "letterbox" else stretched(image, size)


def stretched(image: Tensor, size: tuple[int, int]) -> tuple[Tensor, Letterbox]:
    """The whole image pulled to the input's size, whatever becomes of its aspect: Darknet's way.

    Args, returns: as for :func:`letterbox`.
    """
    height, width = image.shape[-2:]
    where = Letterbox(1.0, 0.0, 0.0, height, width, (size[1] / width, size[0] / height))
    if (height, width) == size:
        return image, where
    found = F.interpolate(_rows_first(image), size=size, mode="bilinear", antialias=True)
    return found[0].contiguous(), where


def fit(height: int, width: int, size: tuple[int, int]) -> float:
    """The largest scale at which an image of ``height`` × ``width`` lies wholly on the input."""
    return min(size[0] / height, size[1] / width)


def centerd(height: int, width: int, size: tuple[int, int], scale: float) -> tuple[int, int]:
    """(left, top) of the scaled image in the middle of the input, whole pixels; negative if larger."""
    return (size[1] - scaled(width, scale)) // 2, (size[0] - scaled(height, scale)) // 2


def place(
    image: Tensor, size: tuple[int, int], scale: float, left: int, top: int
) -> tuple[Tensor, Letterbox]:
    """The image scaled and laid on the gray input with its corner at (left, top); what sticks out is cut.

    The returned offsets differ by less than a pixel from those asked for where the image sticks out on the
    left or the top: only the visible part is resized, and its corner is put on a whole pixel.
    """
    height, width = image.shape[-2:]
    if (height, width) == size and (scale, left, top) == (1.0, 0, 0):
        return image, Letterbox(1.0, 0.0, 0.0, height, width)
    part, corner, where = visible_part(image, size, scale, left, top)
    return paste(resized(part, scale), corner, size), where


def visible_part(
    image: Tensor, size: tuple[int, int], scale: float, left: int, top: int
) -> tuple[Tensor, tuple[int, int], Letterbox]:
    """The first third of :func:`place`: what is to be scaled, the input's pixel (x, y), and the placement."""
    height, width = image.shape[-2:]
    x0, x1, x = _visible(width, size[1], scale, left)
    y0, y1, y = _visible(height, size[0], scale, top)
    where = Letterbox(scale, x - x0 * scale, y - y0 * scale, height, width)
    return image[:, y0:y1, x0:x1], (x, y), where


def paste(patch: Tensor, corner: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """The last third of :func:`place`: a patch laid on the gray input, uint8 (3, H, W)."""
    canvas = torch.full((3, *size), GRAY, dtype=torch.uint8)
    lay(canvas, patch, corner)
    return canvas


def lay(canvas: Tensor, patch: Tensor, corner: tuple[int, int]) -> None:
    """Copies a patch onto a canvas, uint8 (3, H, W) each, at pixel (x, y); what sticks out is cut."""
    x, y = corner
    cut = patch[:, max(0, -y) :, max(0, -x) :]
    onto = canvas[:, max(0, y) :, max(0, x) :]
    rows, columns = min(cut.shape[1], onto.shape[1]), min(cut.shape[2], onto.shape[2])
    onto[:, :rows, :columns] = cut[:, :rows, :columns]


def in_source(where: Letterbox, reduced: int, source: tuple[int, int] | None) -> Letterbox:
    """The placement of an image that was reduced while it was decoded, as a placement of its source.

    Args:
        where: how the reduced image lies on the input.
        reduced: one of its pixels is so many of the source.
        source: (H, W) of the source in pixels; None if nothing was reduced.
    """
    if reduced == 1 or source is None:
        return where
    return replace(where, scale=where.scale / reduced, height=source[0], width=source[1])


def to_input(boxes: Tensor, letterbox: Letterbox) -> Tensor:
    """Boxes xyxy (…, 4) in pixels of the source, in pixels of the input. Not clipped."""
    placed = boxes * letterbox.scale
    if letterbox.stretch != (1.0, 1.0):
        placed = placed * placed.new_tensor(letterbox.stretch * 2)
    return placed + placed.new_tensor((letterbox.left, letterbox.top) * 2)


def to_source(boxes: Tensor, letterbox: Letterbox) -> Tensor:
    """Boxes xyxy (…, 4) in pixels of the input, in pixels of the source and clipped to it."""
    lifted = torch.empty_like(boxes)
    x, y = (letterbox.scale * factor for factor in letterbox.stretch)
    lifted[..., 0::2] = ((boxes[..., 0::2] - letterbox.left) / x).clamp(0, letterbox.width)
    lifted[..., 1::2] = ((boxes[..., 1::2] - letterbox.top) / y).clamp(0, letterbox.height)
    return lifted


def _visible(side: int, input_side: int, scale: float, offset: int) -> tuple[int, int, int]:
    """The source's visible run [first, last) and the whole pixel of the input where it is pasted.

    A margin as wide as the filter stays on both sides, so that the cut is not seen.
    """
    margin = 2 + math.ceil(1 / scale)
    first = max(0, math.floor(-offset / scale) - margin)
    last = min(side, math.ceil((input_side - offset) / scale) + margin)
    # A shift can leave nothing of a small image on the input: then one pixel is resized and cut away.
    first, last = min(first, side - 1), max(last, 1)
    return first, max(last, first + 1), round(offset + first * scale)


def resized(image: Tensor, scale: float) -> Tensor:
    """uint8 (3, h, w) scaled by exactly ``scale``; the size is rounded down, but at least one pixel."""
    if scale == 1.0:
        return image
    new = [scaled(side, scale) for side in image.shape[-2:]]
    if min(int(side * scale * _NUDGE) for side in image.shape[-2:]) == 0:
        return F.interpolate(_rows_first(image), size=new, mode="bilinear", antialias=True)[0].contiguous()
    factors = [scale * _NUDGE] * 2
    found = F.interpolate(_rows_first(image), scale_factor=factors, mode="bilinear", antialias=True)
    return found[0].contiguous()


def _rows_first(image: Tensor) -> Tensor:
    """uint8 (3, h, w) as (1, 3, h, w) that lies in memory pixel by pixel: PyTorch resizes it twice as fast.

    The order of the axes matters: of ``image[None]`` PyTorch does not see that it lies so.
    """
    return image.permute(1, 2, 0).contiguous()[None].permute(0, 3, 1, 2)


def scaled(side: int, scale: float) -> int:
    """Pixels of a side of ``side`` pixels after scaling: rounded down, but at least 1."""
    return max(1, int(side * scale * _NUDGE))
