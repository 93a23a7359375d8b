"""Copy-paste augmentation with boxes: paste the boxes of another image's objects (Ghiasi et al., 2021).

There are no masks, so the background inside an object's box is pasted as well.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rankless.geometry.letterbox import fit
from rankless.structures import Sample

TAKEN = 0.5
"""The probability that an object of the other image is pasted."""
MOST = 8
"""The largest number of objects that are pasted."""
TRIES = 5
"""The number of positions that are tried for an object. If none is free, it is not pasted."""
COVERED = 0.3
"""The largest fraction of an earlier box that a pasted object may cover."""


def copy_paste(sample: Sample, other: Sample, size: tuple[int, int], rng: np.random.Generator) -> Sample:
    """Return a copy of the image ``sample`` with objects of ``other``; their boxes follow the image's own.

    An object is scaled as its own image would be on an input of ``size`` (H, W), and lies entirely inside the
    image. An object larger than the image is not pasted.
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
    """Return the scaled crop that one box covers, uint8 (3, h, w), and the box in the crop's pixels, (4,)."""
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
    """Return a free position (left, top) for a rectangle of ``sides`` (w, h) in an image of ``room`` (w, h).

    If no position is free, None is returned. All positions are drawn at once, so that the outcome for one
    object does not change the draws for others.
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
