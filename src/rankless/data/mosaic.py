"""Mosaics: four training pictures around one point of the input (Bochkovskiy et al., "YOLOv4", 2020).

Each picture is as large as the letterbox would make it, times the zoom, and its inner corner lies on the
point where the four meet; the input's border cuts what sticks out. So a picture is resized once, and no more
of it than is seen.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rankless.data.augment import clip, drawn_colour, mirror, recoloured_patch
from rankless.data.letterbox import GREY, fit, lay, scaled, to_input
from rankless.recipe import Augment
from rankless.types import Letterbox, Picture

SPREAD = 0.3
"""The point lies at most this share of a side from the middle, before zoom and shift: 0.2 to 0.8, as Darknet
has it."""


def mosaic(
    read: Callable[[int], Picture],
    index: int,
    count: int,
    size: tuple[int, int],
    options: Augment,
    chance: np.random.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Picture ``index`` and three others on one input.

    Zoom, shift and mirror are of the mosaic, colour is of each picture. What the border or the neighbour
    leaves too little of is dropped, as in :func:`rankless.data.augment.augment`.

    Args:
        read: gives a picture by its number; not asked for those of which nothing is seen.
        index: the picture that the input is drawn for; it takes one of the four places.
        count: how many pictures there are to choose the others from.
        size: the input's (H, W) in pixels.
        options: how much of what; zero switches a part off and leaves the others' draws as they were.
        chance: where the mosaic comes from.

    Returns:
        The input, uint8 (3, H, W); boxes float32 xyxy in its pixels, (N, 4); labels, (N,).
    """
    others = chance.integers(count, size=3).tolist()
    own = int(chance.integers(4))
    sideways, upside_down = (chance.random(2) < (options.flip, options.flip_vertical)).tolist()
    zoom, *draws = chance.uniform(-1, 1, 5).tolist()
    colours = chance.uniform(-1, 1, (4, 3)).tolist()
    factor = (1 + options.scale) ** zoom
    meeting_x, meeting_y = (
        round(side * (0.5 + SPREAD * factor * off + options.translate * shift))
        for side, off, shift in zip((size[1], size[0]), draws[:2], draws[2:], strict=True)
    )
    canvas = torch.full((3, *size), GREY, dtype=torch.uint8)
    boxes, labels = [torch.zeros(0, 4)], [torch.zeros(0, dtype=torch.int64)]
    regions: list[tuple[int, int, int, int]] = []  # of each box
    for place, number in enumerate([*others[:own], index, *others[own:]]):
        x0, x1 = _half(meeting_x, size[1], place % 2)
        y0, y1 = _half(meeting_y, size[0], place // 2)
        if x0 == x1 or y0 == y1:
            continue
        picture = read(number)
        height, width = picture.image.shape[-2:]
        scale = fit(height, width, size) * factor
        # The inner corner on the meeting point, in pixels of the place.
        left = meeting_x - x0 - (0 if place % 2 else scaled(width, scale))
        top = meeting_y - y0 - (0 if place // 2 else scaled(height, scale))
        matrix = drawn_colour(options, *colours[place])
        patch, corner, where = recoloured_patch(picture.image, matrix, (y1 - y0, x1 - x0), scale, left, top)
        lay(canvas[:, y0:y1, x0:x1], patch, corner)
        where = Letterbox(scale, where.left + x0, where.top + y0, height, width)
        boxes.append(to_input(picture.boxes, where))
        labels.append(picture.labels)
        regions += [(x0, y0, x1, y1)] * len(picture.labels)
    clipped, stays = clip(torch.cat(boxes), torch.tensor(regions, dtype=torch.float32).reshape(-1, 4))
    image, mirrored = mirror(canvas, clipped[stays], sideways, upside_down)
    return image, mirrored, torch.cat(labels)[stays]


def _half(meeting: int, side: int, second: int) -> tuple[int, int]:
    """Pixels [first, last) of the input on one side of the meeting point."""
    cut = min(max(meeting, 0), side)
    return (cut, side) if second else (0, cut)
