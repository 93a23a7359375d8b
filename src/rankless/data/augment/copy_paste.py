"""Copy-paste augmentation: paste objects from another image (Ghiasi et al., 2021).

Without masks, the background inside the box of an object is pasted as well.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rankless.geometry.letterbox import fit
from rankless.structures import IGNORED_LABEL, Sample

TAKEN = 0.5  # probability of pasting an object from the other image
MOST = 8  # maximum number of objects to paste
TRIES = 5  # number of positions to try for an object
COVERED = 0.3  # maximum fraction of an earlier box that a pasted object may cover


def copy_paste(sample: Sample, other: Sample, size: tuple[int, int], rng: np.random.Generator) -> Sample:
    """Return a copy of ``sample`` with objects pasted from ``other`` and their boxes appended.

    Objects are scaled as if both images were letterboxed to ``size`` (H, W). Objects that do not fit inside
    the image are not pasted. Boxes to ignore are not pasted and may be covered.
    """
    objects = np.flatnonzero(other.labels.numpy() != IGNORED_LABEL)
    order = objects[rng.permutation(len(objects))]
    taken = order[rng.random(len(order)) < TAKEN][:MOST].tolist()
    height, width = sample.image.shape[-2:]
    scale = fit(other.image.shape[-2], other.image.shape[-1], size) / fit(height, width, size)
    image, labels = sample.image.clone(), [sample.labels]
    occupied = [sample.boxes[sample.labels != IGNORED_LABEL]]
    for number in taken:
        patch, box = _object(other, number, scale)
        rows, columns = patch.shape[-2:]
        if rows > height or columns > width:
            continue
        position = _free_position(torch.cat(occupied), (columns, rows), (width, height), rng)
        if position is None:
            continue
        left, top = position
        image[:, top : top + rows, left : left + columns] = patch
        occupied.append((box + torch.tensor([left, top, left, top]))[None])
        labels.append(other.labels[number : number + 1])
    return Sample(image, torch.cat([sample.boxes, *occupied[1:]]), torch.cat(labels))


def _object(sample: Sample, number: int, scale: float) -> tuple[Tensor, Tensor]:
    """Return the scaled crop, uint8 (3, h, w), of an object, and its box, (4,), in pixels of the crop."""
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
    """Return a random free position (left, top) for an object, or None if none was found.

    ``sides`` and ``room`` are the (width, height) of the object and of the image. All candidates are sampled
    at once, so that one object does not affect the random numbers for others.
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
