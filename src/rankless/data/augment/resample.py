"""Flip, recolor, zoom, shift and warp a training image with a single resampling.

Zoom and shift change the letterbox placement, so an image is resized only once. If all augmentations
are off, the result is bitwise equal to the letterboxed image. With a warp (rotate, shear, perspective), the
image is sampled once at the source positions of the warp. A 3 × 3 matrix changes the colors, because
converting to HSV and back would take about ten times as long.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.data.augment.warp import Points, drawn_warp, origins, sampled, shrunk, warped_boxes
from rankless.geometry.letterbox import (
    USUAL,
    Placing,
    centered,
    fit,
    paste,
    place,
    resized,
    to_input,
    visible_part,
)
from rankless.recipe.schema import Augment
from rankless.structures import IGNORED_LABEL, Letterbox, Sample

LEAST_AREA = 0.25  # Minimum visible fraction of a box's area. Other boxes are dropped.
LEAST_SIDE = 2.0  # Minimum side of the visible part of a box in pixels. Other boxes are dropped.
_AT_ONCE = 16384  # number of pixels to recolor at once, which fit in the second-level cache


def augment(
    sample: Sample,
    size: tuple[int, int],
    options: Augment,
    rng: np.random.Generator,
    placing: Placing = USUAL,
) -> tuple[Tensor, Tensor, Tensor, Letterbox]:
    """Augment an image randomly, and resize it to the input ``size`` (H, W).

    A strength of 0 in ``options`` turns a step off without changing the random numbers of other steps.

    Returns:
        The input, uint8 (3, H, W); its clipped boxes, float32 xyxy in pixels, (N, 4); their labels, (N,); and
        the placement before the input is warped and mirrored.
    """
    mirrored = bool(rng.random() < options.flip)
    *color, zoom, shift_x, shift_y = rng.uniform(-1, 1, 6).tolist()
    upside_down = bool(rng.random() < options.flip_vertical)
    image = sample.image
    height, width = image.shape[-2:]
    scale = fit(height, width, size) * (1 + options.scale) ** zoom
    left, top = centered(height, width, size, scale)
    left += round(shift_x * options.translate * size[1])
    top += round(shift_y * options.translate * size[0])
    matrix = drawn_color(options, *color)
    warp = drawn_warp(options, size, rng)
    boxes = sample.boxes
    if warp is not None:
        where = Letterbox(scale, left, top, height, width)
        placed = warped_image(image, matrix, origins(warp, size), where, placing)
        boxes = warped_boxes(to_input(boxes, where), warp)
    elif matrix is None:
        placed, where = place(image, size, scale, left, top, placing)
    else:  # the gray margin keeps its color
        patch, corner, where = recolored_patch(image, matrix, size, scale, left, top, placing)
        placed = paste(patch, corner, size, placing)
    placed, boxes = mirror(placed, to_input(boxes, where) if warp is None else boxes, mirrored, upside_down)
    boxes, labels = clip(boxes, sample.labels, np.array([0, 0, size[1], size[0]], np.float32))
    return placed, boxes, labels, where


def mirror(image: Tensor, boxes: Tensor, sideways: bool, upside_down: bool) -> tuple[Tensor, Tensor]:
    """Flip an input, (3, H, W), and its boxes, (N, 4), along one or both axes."""
    if not (sideways or upside_down):
        return image, boxes
    height, width = image.shape[-2:]
    x1, y1, x2, y2 = boxes.unbind(1)
    if sideways:
        x1, x2 = width - x2, width - x1
    if upside_down:
        y1, y2 = height - y2, height - y1
    axes = [axis for axis, flipped in ((-1, sideways), (-2, upside_down)) if flipped]
    return image.flip(axes), torch.stack((x1, y1, x2, y2), 1)


def drawn_color(options: Augment, hue: float, saturation: float, value: float) -> NDArray[np.float32] | None:
    """Return the color matrix, (3, 3), for three random numbers in -1..1, or None if colors do not change."""
    if not (options.hue or options.saturation or options.value):
        return None
    factors = (1 + options.saturation) ** saturation, (1 + options.value) ** value
    return color_matrix(hue * options.hue, *factors)


def color_matrix(hue: float, saturation: float, value: float) -> NDArray[np.float32]:
    """Return the (3, 3) matrix that transforms the colors of RGB column vectors.

    The matrix is ``value * ((1 - saturation) * mean + saturation * rotation)``, where ``mean`` averages the
    three channels and ``rotation`` is Rodrigues' rotation about the gray axis by ``hue`` full turns
    (Haeberli, "Matrix Operations for Image Processing", 1993). Channels have equal weights, so that ``mean``
    and ``rotation`` commute.
    """
    angle = 2 * math.pi * hue
    along, across = (1 - math.cos(angle)) / 3, math.sin(angle) / math.sqrt(3)
    gray = (1 - saturation) / 3
    same = value * (gray + saturation * (math.cos(angle) + along))
    before, after = (value * (gray + saturation * (along + side)) for side in (across, -across))
    return np.array([[same, after, before], [before, same, after], [after, before, same]], np.float32)


def recolor(image: Tensor, matrix: NDArray[np.float32]) -> Tensor:
    """Multiply an image, uint8 (3, H, W), by a color matrix, (3, 3), then round and clip the result.

    The matrix is quantized so that all products and sums are exact in float32. The result therefore does not
    depend on the order of additions, which may vary with threads and processors.
    """
    largest = 256 * max(1.0, float(np.abs(matrix).sum(1).max()))  # a bound on all sums
    steps = np.float32(2.0 ** (24 - math.ceil(math.log2(largest))))  # float32 has a significand of 24 bits
    rounded = np.rint(matrix * steps) / steps
    # A fourth row adds one half, so that truncation rounds to nearest.
    with_half = np.concatenate((rounded, np.full((3, 1), 0.5, np.float32)), 1)
    source = image.numpy().reshape(3, -1)  # (3, H · W); NumPy separates channels twice as fast as PyTorch
    count = source.shape[1]
    result = np.empty((3, count), np.uint8)
    columns = np.ones((4, min(count, _AT_ONCE)), np.float32)
    for first in range(0, count, _AT_ONCE):
        part = source[:, first : first + _AT_ONCE]
        columns[:3, : part.shape[1]] = part
        product = torch.from_numpy(with_half @ columns[:, : part.shape[1]])
        product.clamp_(0, 255)  # twice as fast as NumPy
        np.copyto(result[:, first : first + _AT_ONCE], product.numpy(), casting="unsafe")
    return torch.from_numpy(result).view(image.shape)


def recolored_patch(
    image: Tensor,
    matrix: NDArray[np.float32] | None,
    size: tuple[int, int],
    scale: float,
    left: int,
    top: int,
    placing: Placing = USUAL,
) -> tuple[Tensor, tuple[int, int], Letterbox]:
    """Return the visible part of an image, scaled and recolored, with its (left, top) and the placement.

    The image is recolored before or after scaling, whichever has fewer pixels. See :func:`visible_part` for
    ``size``, ``scale``, ``left`` and ``top``.
    """
    part, corner, where = visible_part(image, size, scale, left, top)
    if matrix is None:
        patch = resized(part, scale, placing)
    elif scale > 1:
        patch = resized(recolor(part, matrix), scale, placing)
    else:
        patch = recolor(resized(part, scale, placing), matrix)
    return patch, corner, where


def warped_image(
    image: Tensor,
    matrix: NDArray[np.float32] | None,
    points: Points,
    where: Letterbox,
    placing: Placing = USUAL,
) -> Tensor:
    """Recolor an image, place it according to ``where``, and sample it at ``points``, uint8 (3, H, W)."""
    smaller, scales = shrunk(image, (where.scale, where.scale), placing)
    smaller = smaller if matrix is None else recolor(smaller, matrix)
    return sampled(smaller, points, scales, (where.left, where.top), placing.gray)


def clip(
    boxes: Tensor, labels: Tensor, region: NDArray[np.float32], least: float = LEAST_AREA
) -> tuple[Tensor, Tensor]:
    """Clip xyxy boxes, (N, 4), to a region, and return the boxes to keep with their ``labels``.

    ``region`` is one region, (4,), or one per box, (N, 4). A box is kept if at least the fraction ``least``
    of its area remains. A box to ignore is kept if any part of it remains.
    """
    given = boxes.numpy()  # for ten boxes, NumPy is three times as fast as torch
    clipped = np.minimum(np.maximum(given, region[..., [0, 1, 0, 1]]), region[..., [2, 3, 2, 3]])
    width, height = (given[:, 2:] - given[:, :2]).T
    across, down = (clipped[:, 2:] - clipped[:, :2]).T
    enough = (across * down >= least * (width * height)) & (np.minimum(across, down) >= LEAST_SIDE)
    # Rounding in the letterbox may move a box slightly beyond the border, which does not count as clipping.
    whole = (np.abs(given - clipped) < 1e-2).all(1)
    stays = (enough | whole | (labels.numpy() == IGNORED_LABEL)) & (across > 0) & (down > 0)
    return torch.from_numpy(clipped[stays]), labels[torch.from_numpy(stays)]
