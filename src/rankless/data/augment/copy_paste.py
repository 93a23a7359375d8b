"""Copy-paste of boxes: objects of another image, each as its rectangle (after Ghiasi et al., 2021).

There are no masks, so an object brings the background of its box along.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rankless.geometry.letterbox import fit
from rankless.structures import Sample

TAKEN = 0.5
"""Probability that an object of the other image is taken …"""
MOST = 8
"""… of which at most so many are pasted."""
TRIES = 5
"""Positions tried for one object; if none is free, it is not pasted."""
COVERED = 0.3
"""A position is free if at most this fraction of any earlier box would be covered."""


def copy_paste(sample: Sample, other: Sample, size: tuple[int, int], rng: np.random.Generator) -> Sample:
    """Return an image with objects of another.

    An object is as large on the input as its own image would show it, and lies wholly in the image; one
    that is larger than the image is not pasted. The boxes that were there all stay.

    Args:
        sample: what is pasted into; not changed.
        other: where the objects come from.
        size: the network's input (H, W) in pixels.
        rng: draws which objects, and where.

    Returns:
        The image with its boxes, then those of the pasted objects.
    """
    order = rng.permutation(len(other.labels))
    taken = order[rng.random(len(order)) < TAKEN][:MOST].tolist()
    height, width = sample.image.shape[-2:]
    scale = fit(other.image.shape[-2], other.image.shape[-1], size) / fit(height, width, size)
    image, boxes, labels = sample.image.clone(), [sample.boxes], [sample.labels]
    for number in taken:
        patch, box = _object(other, number, scale)
        rows, columns = patch.shape[-2:]
        if rows > height or columns > width:
            continue
        position = _free_position(torch.cat(boxes), (columns, rows), (width, height), rng)
        if position is None:
            continue
        left, top = position
        image[:, top : top + rows, left : left + columns] = patch
        boxes.append((box + torch.tensor([left, top, left, top]))[None])
        labels.append(other.labels[number : number + 1])
    return Sample(image, torch.cat(boxes), torch.cat(labels))


def _object(sample: Sample, number: int, scale: float) -> tuple[Tensor, Tensor]:
    """The whole pixels that a box touches, scaled, uint8 (3, h, w), and the box in their pixels, (4,)."""
    height, width = sample.image.shape[-2:]
    x1, y1, x2, y2 = sample.boxes[number].tolist()
    left, top = max(0, int(x1)), max(0, int(y1))
    patch = sample.image[:, top : min(height, int(np.ceil(y2))), left : min(width, int(np.ceil(x2)))]
    box = torch.tensor([x1 - left, y1 - top, x2 - left, y2 - top])
    sides = [max(1, round(side * scale)) for side in patch.shape[-2:]]
    if sides == list(patch.shape[-2:]):
        return patch, box
    down, right = (new / old for new, old in zip(sides, patch.shape[-2:], strict=True))
    patch = F.interpolate(patch[None], size=sides, mode="bilinear", antialias=True)[0]
    return patch, box * torch.tensor([right, down, right, down])


def _free_position(
    boxes: Tensor, sides: tuple[int, int], room: tuple[int, int], rng: np.random.Generator
) -> tuple[int, int] | None:
    """(left, top) of a rectangle of ``sides`` (w, h) in an image of ``room`` (w, h), or None.

    Every try draws, so that what one object meets changes no other's draws.
    """
    draws = rng.random((TRIES, 2))
    lefts = np.rint(draws[:, 0] * (room[0] - sides[0])).astype(int)
    tops = np.rint(draws[:, 1] * (room[1] - sides[1])).astype(int)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    for left, top in zip(lefts.tolist(), tops.tolist(), strict=True):
        rectangle = torch.tensor([left, top, left + sides[0], top + sides[1]])
        shared = boxes[:, 2:].minimum(rectangle[2:]) - boxes[:, :2].maximum(rectangle[:2])
        if (shared.clamp(min=0).prod(1) <= COVERED * areas).all():
            return left, top
    return None
