"""Mosaics: four training images around one point of the input (Bochkovskiy et al., "YOLOv4", 2020).

Each image is as large as the letterbox would make it, times the zoom, and its inner corner lies on the
point where the four meet; the input's border cuts what sticks out. So an image is resized once, and no more
of it than is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.data.augment.resample import clip, drawn_color, mirror, recolored_patch, warped_image
from rankless.data.augment.warp import Matrix, Points, drawn_warp, origins, warped_boxes
from rankless.geometry.letterbox import USUAL, Placing, fit, lay, scaled, to_input
from rankless.recipe.schema import Augment
from rankless.structures import Letterbox, Sample

SPREAD = 0.3
"""The point lies at most this fraction of a side off the middle, before zoom and shift: 0.2 to 0.8, as
in Darknet."""


def mosaic(
    read: Callable[[int], Sample],
    index: int,
    among: Sequence[int],
    size: tuple[int, int],
    options: Augment,
    rng: np.random.Generator,
    placing: Placing = USUAL,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return image ``index`` and three others on one input.

    Zoom, shift, warp and mirror are of the mosaic, color is of each image. A box of which borders leave less
    than ``options.mosaic_min_area`` is dropped.

    Args:
        read: gives an image by its number; not asked for those of which nothing is seen.
        index: the image that the input is drawn for; it is one of the four tiles.
        among: the images, it included, from which the others are drawn.
        size: the input's (H, W) in pixels.
        options: how much of what; zero switches a part off and leaves the others' draws as they were.
        rng: draws the mosaic.
        placing: the resize and the margin.

    Returns:
        The input, uint8 (3, H, W); boxes float32 xyxy in its pixels, (N, 4); labels, (N,).
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
    """Draw three images that differ from ``index`` and from each other, if the data has that many."""
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
    """The four tiles of a mosaic, and the input that they are laid on.

    Without a warp, a tile is the quarter of the input that the meeting point leaves it. With one, the tiles
    have no outer border, and what the input shows of them the warp decides.
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
        """Return whether the input shows anything of a tile."""
        if self._points is not None:
            return bool(self._mask(tile, self._points).any())
        x0, y0, x1, y1 = self._quarter(tile)
        return x0 < x1 and y0 < y1

    def lay(self, tile: int, sample: Sample, factor: float, matrix: NDArray[np.float32] | None) -> None:
        """Lay an image, ``factor`` times as large as letterboxed, its inner corner on the meeting point.

        Args:
            tile: 0 to 3, by rows.
            sample: the image, uint8 (3, h, w), and its boxes, (N, 4).
            factor: on the letterbox's scale.
            matrix: the color matrix, (3, 3), or None.
        """
        height, width = sample.image.shape[-2:]
        scale = fit(height, width, self.size) * factor
        left = self.meeting[0] - (0 if tile % 2 else scaled(width, scale))
        top = self.meeting[1] - (0 if tile // 2 else scaled(height, scale))
        if self._points is None:
            where = self._lay_flat(tile, sample.image, matrix, (scale, left, top))
            region = np.array([self._quarter(tile)], np.float32)
            self._regions.append(region.repeat(len(sample.labels), 0))
        else:
            where = Letterbox(scale, left, top, height, width)
            self._lay_warped(tile, sample.image, matrix, where, self._points)
        self._boxes.append((to_input(sample.boxes, where), sample.labels))

    def boxes(self, least: float) -> tuple[Tensor, Tensor]:
        """Return boxes (N, 4) as the input shows them, and their labels (N,); ``least`` as of ``clip``."""
        boxes, labels = (torch.cat(part) for part in zip(*self._boxes, strict=True))
        region = np.array([0, 0, self.size[1], self.size[0]], np.float32)
        if self.warp is None:
            region = np.concatenate(self._regions)
        else:
            boxes = warped_boxes(boxes, self.warp)
        clipped, stays = clip(boxes, region, least)
        return clipped[stays], labels[stays]

    def _lay_flat(
        self,
        tile: int,
        image: Tensor,
        matrix: NDArray[np.float32] | None,
        at: tuple[float, int, int],
    ) -> Letterbox:
        x0, y0, x1, y1 = self._quarter(tile)
        scale, left, top = at
        patch, corner, where = recolored_patch(
            image, matrix, (y1 - y0, x1 - x0), scale, left - x0, top - y0, self.placing
        )
        lay(self.canvas[:, y0:y1, x0:x1], patch, corner)
        return replace(where, left=where.left + x0, top=where.top + y0)

    def _lay_warped(
        self, tile: int, image: Tensor, matrix: NDArray[np.float32] | None, where: Letterbox, points: Points
    ) -> None:
        mask = self._mask(tile, points)
        rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
        part = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        patch = warped_image(image, matrix, (points[0][part], points[1][part]), where, self.placing)
        under = self.canvas[:, part[0], part[1]]
        under.copy_(torch.where(torch.from_numpy(mask[part]), patch, under))

    def _mask(self, tile: int, points: Points) -> NDArray[np.bool_]:
        """Return which pixels of the input come from a tile, (H, W)."""
        right, below = (axis >= middle for axis, middle in zip(points, self.meeting, strict=True))
        mask: NDArray[np.bool_] = (right if tile % 2 else ~right) & (below if tile // 2 else ~below)
        return mask

    def _quarter(self, tile: int) -> tuple[int, int, int, int]:
        """Return a tile without a warp, xyxy in pixels of the input."""
        x0, x1 = _half(self.meeting[0], self.size[1], tile % 2)
        y0, y1 = _half(self.meeting[1], self.size[0], tile // 2)
        return x0, y0, x1, y1


def _half(meeting: int, side: int, second: int) -> tuple[int, int]:
    """Return pixels [first, last) of the input on one side of the meeting point."""
    cut = min(max(meeting, 0), side)
    return (cut, side) if second else (0, cut)
