"""Augment a detector's training images with the steps of ``data.augment``, in a fixed order.

First, objects from another image are pasted (copy-paste), and the image is cropped. Then the image, or a
mosaic of four such images, is placed on the input, mirrored, recolored, zoomed, shifted and warped. After
that, blur, noise and JPEG artifacts are added. Finally, two inputs are blended (mixup).

Each step has its own random generator, which depends only on (seed, step, epoch, index), so turning one step
off does not change the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.data.augment.copy_paste import copy_paste
from rankless.data.augment.degrade import degrade
from rankless.data.augment.mixing import blended
from rankless.data.augment.mosaic import mosaic
from rankless.data.augment.resample import augment
from rankless.data.images.sources import Readable
from rankless.geometry.letterbox import USUAL, Placing, in_source
from rankless.randomness import generator
from rankless.recipe.schema import Augment
from rankless.structures import IGNORED_LABEL, Letterbox, Sample

Augmented = tuple[Tensor, Tensor, Tensor, Letterbox]
"""The input, uint8 (3, H, W); boxes, float32 xyxy in pixels, (N, 4); labels, (N,); and the placement."""

ASPECT = 4 / 3
"""Maximum factor between the aspect ratios of the image and of a crop before it is grown."""


@dataclass
class Augmenter:
    """An augmenter for the images of one epoch."""

    images: Readable[Sample]
    among: Sequence[int]  # sorted indices of possible partners, including the image itself
    size: tuple[int, int]  # (H, W) of the input in pixels
    options: Augment
    key: tuple[int, int]  # (seed, epoch) for the random generators
    last_epochs: bool  # whether to turn off mosaic, mixup and copy-paste
    placing: Placing = USUAL

    @property
    def _partners(self) -> bool:
        return not self.last_epochs and len(self.among) > 1

    def _rng(self, part: str, index: int) -> np.random.Generator:
        return generator(self.key[0], part, self.key[1], index)

    def augmented(self, index: int) -> Augmented:
        """Return the augmented input for an image, possibly blended with another input.

        The result includes the placement of the cropped image before warping and mirroring, or the identity
        for a mosaic.
        """
        image, boxes, labels, where = self._place(index)
        if not (self.options.mixup and self._partners):
            return image, boxes, labels, where
        rng = self._rng("mix", index)
        if rng.random() >= self.options.mixup_probability:
            return image, boxes, labels, where
        weight = float(rng.beta(self.options.mixup, self.options.mixup))
        other = self._place(self._another(index, rng))
        boxes, labels = torch.cat((boxes, other[1])), torch.cat((labels, other[2]))
        return blended(image, other[0], weight), boxes, labels, where

    def _place(self, index: int) -> Augmented:
        options = self.options
        mosaics = options.mosaic and not self.last_epochs
        if mosaics and (rng := self._rng("mosaic", index)).random() < options.mosaic:
            tiles = (self._source, index, self.among, self.size)
            image, boxes, labels = mosaic(*tiles, options, rng, self.placing)
            # The identity, because no placement of a single image applies to all boxes.
            where = Letterbox(1.0, 0.0, 0.0, *self.size)
        else:
            sample = self._source(index)
            rng = self._rng("augment", index)
            image, boxes, labels, where = augment(sample, self.size, options, rng, self.placing)
            where = in_source(where, sample.reduced, sample.source)
        return degrade(image, options, (self.key[0], "augment", self.key[1], index)), boxes, labels, where

    def _source(self, index: int) -> Sample:
        """Return an image after copy-paste and cropping."""
        sample = self.images.read(index)
        if self.options.copy_paste and self._partners:
            rng = self._rng("copy-paste", index)
            if rng.random() < self.options.copy_paste:
                other = self.images.read(self._another(index, rng))
                sample = copy_paste(sample, other, self.size, rng)
        if self.options.crop >= 1:
            return sample
        return cropped(sample, self.options.crop, self._rng("crop", index))

    def _another(self, index: int, rng: np.random.Generator) -> int:
        further = 1 + int(rng.integers(len(self.among) - 1))
        return self.among[(self.among.index(index) + further) % len(self.among)]


def cropped(sample: Sample, smallest: float, rng: np.random.Generator) -> Sample:
    """Return a random crop of an image that does not cut any object. It may contain no boxes.

    The fraction of the area is uniform from ``smallest`` to 1, the aspect ratio is log-uniform around that of
    the image, and the position is uniform. The crop is then grown to contain every object that it touches.
    Boxes to ignore are clipped.
    """
    height, width = sample.image.shape[-2:]
    drawn, aspect, across, down = rng.uniform(0, 1, 4).tolist()
    area = smallest + drawn * (1 - smallest)
    # The product of the factors for width and height is the area, and both are at most 1.
    factor = min(max(math.sqrt(area) * ASPECT ** (aspect - 0.5), area), 1.0)
    columns, rows = math.ceil(width * factor), math.ceil(height * area / factor)
    columns, rows = min(columns, width), min(rows, height)
    left, top = round(across * (width - columns)), round(down * (height - rows))
    boxes, ignored = sample.boxes, sample.labels == IGNORED_LABEL
    drawn_part = np.array([left, top, left + columns, top + rows])
    part = _grow(drawn_part, boxes[~ignored].double().numpy(), (width, height))
    left, top, right, bottom = part.tolist()
    inside = torch.from_numpy(_touched(part, boxes.double().numpy()))
    corner, opposite = torch.from_numpy(part.astype(np.float32)[[[0, 1, 0, 1], [2, 3, 2, 3]]])
    boxes = torch.where(ignored.unsqueeze(1), boxes.clamp(corner, opposite), boxes)
    image = sample.image[:, top:bottom, left:right]
    return Sample(image, boxes[inside] - corner, sample.labels[inside])


def _touched(part: NDArray[np.int64], boxes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask, (N,), of the boxes, (N, 4), that a crop (xyxy, (4,)) contains or cuts."""
    touched: NDArray[np.bool_] = np.all((boxes[:, :2] < part[2:]) & (boxes[:, 2:] > part[:2]), axis=1)
    return touched


def _grow(part: NDArray[np.int64], boxes: NDArray[np.float64], sides: tuple[int, int]) -> NDArray[np.int64]:
    """Grow a crop (xyxy, (4,)) until it cuts no box."""
    while True:
        inside = _touched(part, boxes)
        first = np.floor(boxes[inside, :2]).min(0, initial=np.inf).clip(0)
        last = np.minimum(np.ceil(boxes[inside, 2:]).max(0, initial=0), sides)
        grown = np.concatenate((np.minimum(part[:2], first), np.maximum(part[2:], last))).astype(np.int64)
        if (grown == part).all():
            return part
        part = grown
