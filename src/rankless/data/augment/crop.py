"""Random crops that cut no object: a part of the image, grown until no box crosses its edge."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from rankless.structures import Sample

ASPECT = 4 / 3
"""Largest aspect of a crop in relation to the image's, either way, before it grows."""


def cropped(sample: Sample, smallest: float, chance: np.random.Generator) -> Sample:
    """A random part of an image.

    The part has an even share of the area from ``smallest`` to 1, a log-even aspect around the image's and
    an even place. Then it grows to hold each box that it touches, and those that it touches by growing. So a
    box is in it whole or not at all; a part without any is an image without objects.

    Args:
        image: the source; stays as it is.
        smallest: least share of the area, above 0; 1 returns the image itself.
        chance: where the part comes from.

    Returns:
        The part, with the boxes in it in its own pixels.
    """
    height, width = sample.image.shape[-2:]
    share, aspect, across, down = chance.uniform(0, 1, 4).tolist()
    if smallest >= 1:
        return sample
    share = smallest + share * (1 - smallest)
    # The factors on the sides multiply to the share, and neither is above 1.
    factor = min(max(math.sqrt(share) * ASPECT ** (aspect - 0.5), share), 1.0)
    columns, rows = math.ceil(width * factor), math.ceil(height * share / factor)
    columns, rows = min(columns, width), min(rows, height)
    left, top = round(across * (width - columns)), round(down * (height - rows))
    boxes = sample.boxes.double().numpy()
    part, inside = _grown(np.array([left, top, left + columns, top + rows]), boxes, (width, height))
    left, top, right, bottom = part.tolist()
    image = sample.image[:, top:bottom, left:right]
    kept = torch.from_numpy(inside)
    corner = torch.tensor([left, top, left, top], dtype=torch.float32)
    return Sample(image, sample.boxes[kept] - corner, sample.labels[kept])


def _grown(
    part: NDArray[np.int64], boxes: NDArray[np.float64], sides: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The part as large as it must be to cut no box, xyxy in whole pixels, and which boxes are in it."""
    while True:
        inside: NDArray[np.bool_] = np.all(
            (boxes[:, :2] < part[2:]) & (boxes[:, 2:] > part[:2]), axis=1
        )  # (N,)
        first = np.floor(boxes[inside, :2]).min(0, initial=np.inf).clip(0)
        last = np.minimum(np.ceil(boxes[inside, 2:]).max(0, initial=0), sides)
        grown = np.concatenate((np.minimum(part[:2], first), np.maximum(part[2:], last))).astype(np.int64)
        if (grown == part).all():
            return part, inside
        part = grown
