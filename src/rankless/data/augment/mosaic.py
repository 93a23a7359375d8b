"""Combine four training images in a mosaic (Bochkovskiy et al., "YOLOv4", 2020).

The images meet at one point of the input. Only the visible part of an image is resized, and only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.data.augment.resample import clip, drawn_color, mirror, recolored_patch, warped_image
from rankless.data.augment.warp import Matrix, Points, drawn_warp, origins, warped_boxes
from rankless.geometry.letterbox import USUAL, Placing, fit, lay, scaled, to_input
from rankless.recipe.schema import Augment
from rankless.structures import Letterbox, Sample

SPREAD = 0.3  # maximum distance of the meeting point from the center, as a fraction of a side, as in Darknet


def mosaic(
    read: Callable[[int], Sample],
    index: int,
    among: Sequence[int],
    size: tuple[int, int],
    options: Augment,
    rng: np.random.Generator,
    placing: Placing = USUAL,
) -> tuple[Tensor, Tensor, Tensor]:
    """Place an image and three other images on one input.

    Zoom, shift, warp and mirroring apply to the whole mosaic, and color changes apply to each image
    separately. A box is dropped if the visible fraction of its area is less than ``options.mosaic_min_area``.

    Args:
        read: a function that returns the image with a given index, called only for visible tiles.
        index: index of the image.
        among: indices from which the other images are sampled, including ``index``.
        size: (H, W) of the input in pixels.
        options: strength of each step; 0 turns a step off without changing the random numbers of other steps.

    Returns:
        The input, uint8 (3, H, W); its boxes, float32 xyxy in pixels, (N, 4); and their labels, (N,).
    """
    others = _others(index, among, rng)
    tile_of_index = int(rng.integers(4))
    sideways, upside_down = (rng.random(2) < (options.flip, options.flip_vertical)).tolist()
    zoom, *draws = rng.uniform(-1, 1, 5).tolist()
    colors = rng.uniform(-1, 1, (4, 3)).tolist()
    factor = (1 + options.scale) ** zoom
    meeting_x, meeting_y = (
        round(side * (0.5 + SPREAD * factor * off + options.translate * shift))
        for side, off, shift in zip((size[1], size[0]), draws[:2], draws[2:], strict=True)
    )
    tiles = _Tiles(size, (meeting_x, meeting_y), drawn_warp(options, size, rng), placing)
    for tile, number in enumerate([*others[:tile_of_index], index, *others[tile_of_index:]]):
        if tiles.seen(tile):
            tiles.lay(tile, read(number), factor, drawn_color(options, *colors[tile]))
    clipped, labels = tiles.boxes(options.mosaic_min_area)
    image, mirrored = mirror(tiles.canvas, clipped, sideways, upside_down)
    return image, mirrored, labels


def _others(index: int, among: Sequence[int], rng: np.random.Generator) -> list[int]:
    """Sample three images that differ from ``index`` and from each other, if there are enough images."""
    taken, others = [among.index(index)], []
    for draw in rng.random(3).tolist():
        if len(taken) == len(among):
            taken = []
        tile = int(draw * (len(among) - len(taken)))
        for before in sorted(taken):
            tile += tile >= before
        taken.append(tile)
        others.append(among[tile])
    return others


class _Tiles:
    """The four tiles of a mosaic.

    Without a warp, a tile is one of the four parts of the input around the meeting point. With a warp, tiles
    have no outer border, and the warp determines which part is visible.
    """

    def __init__(
        self, size: tuple[int, int], meeting: tuple[int, int], warp: Matrix | None, placing: Placing
    ) -> None:
        self.size, self.meeting, self.warp, self.placing = size, meeting, warp, placing
        self.canvas = torch.full((3, *size), placing.gray, dtype=torch.uint8)
        self._points = None if warp is None else origins(warp, size)
        self._boxes: list[tuple[Tensor, Tensor]] = [(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))]
        self._regions = [np.zeros((0, 4), np.float32)]

    def seen(self, tile: int) -> bool:
        """Return whether any part of a tile is visible."""
        if self._points is not None:
            return bool(self._mask(tile, self._points).any())
        x0, y0, x1, y1 = self._quarter(tile)
        return x0 < x1 and y0 < y1

    def lay(self, tile: int, sample: Sample, factor: float, matrix: NDArray[np.float32] | None) -> None:
        """Place an image in a tile (0 to 3, row by row), with its inner corner at the meeting point.

        ``factor`` multiplies the letterbox scale, and ``matrix`` is a (3, 3) color matrix or None.
        """
        height, width = sample.image.shape[-2:]
        scale = fit(height, width, self.size) * factor
        left = self.meeting[0] - (0 if tile % 2 else scaled(width, scale))
        top = self.meeting[1] - (0 if tile // 2 else scaled(height, scale))
        if self._points is None:
            x0, y0, x1, y1 = self._quarter(tile)
            room, at = (y1 - y0, x1 - x0), (scale, left - x0, top - y0)
            patch, corner, where = recolored_patch(sample.image, matrix, room, *at, self.placing)
            lay(self.canvas[:, y0:y1, x0:x1], patch, corner)
            where = Letterbox(scale, where.left + x0, where.top + y0, height, width)
            region = np.array([[x0, y0, x1, y1]], np.float32)
            self._regions.append(region.repeat(len(sample.labels), 0))
        else:
            where = Letterbox(scale, left, top, height, width)
            mask = self._mask(tile, self._points)
            rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
            part = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
            points = (self._points[0][part], self._points[1][part])
            patch = warped_image(sample.image, matrix, points, where, self.placing)
            under = self.canvas[:, part[0], part[1]]
            under.copy_(torch.where(torch.from_numpy(mask[part]), patch, under))
        self._boxes.append((to_input(sample.boxes, where), sample.labels))

    def boxes(self, least: float) -> tuple[Tensor, Tensor]:
        """Return the boxes on the input, (N, 4), and their labels, (N,); see :func:`clip` for ``least``."""
        boxes, labels = (torch.cat(part) for part in zip(*self._boxes, strict=True))
        region = np.array([0, 0, self.size[1], self.size[0]], np.float32)
        if self.warp is None:
            region = np.concatenate(self._regions)
        else:
            boxes = warped_boxes(boxes, self.warp)
        return clip(boxes, labels, region, least)

    def _mask(self, tile: int, points: Points) -> NDArray[np.bool_]:
        """Return a mask, (H, W), of the pixels that show a tile."""
        right, below = (axis >= middle for axis, middle in zip(points, self.meeting, strict=True))
        mask: NDArray[np.bool_] = (right if tile % 2 else ~right) & (below if tile // 2 else ~below)
        return mask

    def _quarter(self, tile: int) -> tuple[int, int, int, int]:
        x0, x1 = _half(self.meeting[0], self.size[1], tile % 2)
        y0, y1 = _half(self.meeting[1], self.size[0], tile // 2)
        return x0, y0, x1, y1


def _half(meeting: int, side: int, second: int) -> tuple[int, int]:
    """Return the half-open range of pixels before or after the meeting point along one axis."""
    cut = min(max(meeting, 0), side)
    return (cut, side) if second else (0, cut)
