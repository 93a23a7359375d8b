"""Rotate, shear and tilt the input with a warp, in the same resampling step as zoom and shift.

A warp is a homography, float64 (3, 3), that maps points of the input to warped points, both in pixels. The
image is sampled at the source position of each input pixel.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rankless.geometry.letterbox import GRAY, USUAL, Placing
from rankless.recipe.schema import Augment

Matrix = NDArray[np.float64]
Points = tuple[NDArray[np.float64], NDArray[np.float64]]
"""The x coordinates and the y coordinates of points, as arrays of the same shape."""

_NUDGE = 1 + 2**-40  # prevents results such as 639 / 3 = 212.99…
_NEAR = 1e-3  # minimum depth of points on the input; points with a smaller depth are near the horizon


def drawn_warp(options: Augment, size: tuple[int, int], rng: np.random.Generator) -> Matrix | None:
    """Return a random warp within the limits ``rotate``, ``shear`` and ``perspective``, or None if all are 0.

    The corners of the input, whose (H, W) is ``size``, are moved first. Then the input is sheared and rotated
    about its center.
    """
    if not (options.rotate or options.shear or options.perspective):
        return None
    turn, slant_x, slant_y = rng.uniform(-1, 1, 3).tolist()
    corners = rng.uniform(-1, 1, (4, 2)) * options.perspective
    angle, x, y = (
        math.radians(degrees)
        for degrees in (turn * options.rotate, slant_x * options.shear, slant_y * options.shear)
    )
    turned = np.array(
        [[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]]
    )
    # Two successive shears preserve areas. A simultaneous shear of 45° in both directions would give a line.
    slanted = np.array([[1, 0, 0], [math.tan(y), 1, 0], [0, 0, 1]]) @ [
        [1, math.tan(x), 0],
        [0, 1, 0],
        [0, 0, 1],
    ]
    tilted = from_unit_square(np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) + corners)
    height, width = size
    from_middle = np.array([[1, 0, width / 2], [0, 1, height / 2], [0, 0, 1]])
    to_middle = np.array([[1, 0, -width / 2], [0, 1, -height / 2], [0, 0, 1]])
    to_unit = np.diag([1 / width, 1 / height, 1])
    whole: Matrix = (
        from_middle @ turned @ slanted @ to_middle @ np.diag([width, height, 1]) @ tilted @ to_unit
    )
    return whole


def from_unit_square(corners: Matrix) -> Matrix:
    """Return the homography that maps (0, 0), (1, 0), (1, 1), (0, 1) to the given corners, (4, 2).

    The closed form (Heckbert, "Fundamentals of Texture Mapping", 1989, section 2.2.3) does not depend on a
    solver. The corners must form a convex quadrilateral, which is guaranteed if each corner moves by less
    than 1/4.
    """
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = corners.tolist()
    right, below = (x1 - x2, y1 - y2), (x3 - x2, y3 - y2)
    off = (x0 - x1 + x2 - x3, y0 - y1 + y2 - y3)
    area = right[0] * below[1] - below[0] * right[1]
    g = (off[0] * below[1] - below[0] * off[1]) / area
    h = (right[0] * off[1] - off[0] * right[1]) / area
    return np.array(
        [[x1 - x0 + g * x1, x3 - x0 + h * x3, x0], [y1 - y0 + g * y1, y3 - y0 + h * y3, y0], [g, h, 1]]
    )


def origins(warp: Matrix, size: tuple[int, int]) -> Points:
    """Return x and y, (H, W) each, of the source position of each input pixel; 1e9 beyond the horizon."""
    back = np.linalg.inv(warp)
    x, y = np.arange(size[1]) + 0.5, np.arange(size[0])[:, None] + 0.5
    across, down, depth = (row[0] * x + row[1] * y + row[2] for row in back)
    seen = depth > 0
    depth = np.where(seen, depth, 1)
    return np.where(seen, across / depth, 1e9), np.where(seen, down / depth, 1e9)


def warped_boxes(boxes: Tensor, warp: Matrix) -> Tensor:
    """Return the xyxy boxes, (N, 4), that enclose the warped boxes, without clipping.

    Only the part of a box in front of the horizon is used. A box beyond the horizon is moved outside the
    input.
    """
    x1, y1, x2, y2 = boxes.double().numpy().T
    corners = np.stack(
        (np.stack((x1, x2, x2, x1), 1), np.stack((y1, y1, y2, y2), 1), np.ones((len(boxes), 4)))
    )
    moved = np.einsum("ij,jnk->nki", warp, corners)  # (N, 4, 3)
    points = moved[..., :2] / np.maximum(moved[..., 2:], _NEAR)  # (N, 4, 2)
    around = np.concatenate((points.min(1), points.max(1)), 1)
    for number in np.flatnonzero((moved[..., 2] < _NEAR).any(1)):
        before = _before_the_horizon(moved[number])
        seen = before[:, :2] / before[:, 2:]
        around[number] = (*seen.min(0), *seen.max(0)) if len(seen) else (-1, -1, -1, -1)
    return torch.from_numpy(around.astype(np.float32))


def _before_the_horizon(polygon: Matrix) -> Matrix:
    """Clip a polygon of homogeneous points, (K, 3), at the horizon."""
    points = []
    for one, other in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        if one[2] >= _NEAR:
            points.append(one)
        if (one[2] >= _NEAR) != (other[2] >= _NEAR):
            points.append(one + (other - one) * ((_NEAR - one[2]) / (other[2] - one[2])))
    return np.array(points).reshape(-1, 3)


def shrunk(
    image: Tensor, scales: tuple[float, float], placing: Placing = USUAL
) -> tuple[Tensor, tuple[float, float]]:
    """Shrink an image by integer factors with antialiasing before it is sampled at scales below 1/2.

    Otherwise, bilinear sampling, which uses only the four nearest pixels, would cause aliasing. Return the
    smaller image and the remaining scales along x and y.
    """
    height, width = image.shape[-2:]
    across, down = (
        min(max(1, int(1 / scale)), side) for scale, side in zip(scales, (width, height), strict=True)
    )
    if (across, down) == (1, 1) or not placing.antialias:
        return image, scales
    factors = [_NUDGE / down, _NUDGE / across]
    smaller = F.interpolate(image[None], scale_factor=factors, mode="bilinear", antialias=True)[0]
    return smaller, (scales[0] * across, scales[1] * down)


def sampled(
    image: Tensor, points: Points, scales: tuple[float, float], corner: tuple[float, float], gray: int = GRAY
) -> Tensor:
    """Sample an image on a plane at the given points by bilinear interpolation; return uint8 (3, H, W).

    Args:
        image: uint8, (3, h, w).
        points: x and y coordinates on the plane, (H, W) each.
        scales: number of plane pixels per image pixel along x and y.
        corner: (x, y) of the upper left corner of the image on the plane.
        gray: value outside the image, 0..255.
    """
    normalized = [
        # torch expects -1..1. Values beyond ±2 are gray and are therefore clipped.
        np.clip(2 * (axis - start) / (scale * side) - 1, -2 - 4 / side, 2 + 4 / side).astype(np.float32)
        for axis, start, scale, side in zip(
            points, corner, scales, (image.shape[-1], image.shape[-2]), strict=True
        )
    ]
    grid = torch.from_numpy(np.stack(normalized, -1))[None]  # (1, H, W, 2)
    # torch pads with zeros, so zero must represent gray.
    source = (image.float() - gray)[None]
    sampled_ = F.grid_sample(source, grid, mode="bilinear", padding_mode="zeros", align_corners=False)[0]
    return (sampled_ + gray).round_().clamp_(0, 255).to(torch.uint8)
