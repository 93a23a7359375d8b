"""One training image of a detector, from all that ``data.augment`` knows: the order in which it works.

An image gets objects of another (copy-paste) and is cropped; it, or a mosaic of four such images, is laid
on the input, mirrored, recolored, zoomed, shifted and warped; the input is blurred, made noisy and
compressed; and two inputs made like that are blended (mixup).

Every part has a key of its own from (seed, part, epoch, index), so the image is a function of these alone,
and one part switched off leaves the others as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rankless.data.augment.copy_paste import copy_paste
from rankless.data.augment.crop import cropped
from rankless.data.augment.degrade import degrade
from rankless.data.augment.mixing import blended
from rankless.data.augment.mosaic import mosaic
from rankless.data.augment.resample import augment
from rankless.geometry.letterbox import in_source
from rankless.randomness import generator
from rankless.recipe.schema import Augment
from rankless.structures import Letterbox, Sample

Augmented = tuple[Tensor, Tensor, Tensor, Letterbox]
"""The input, uint8 (3, H, W); boxes float32 xyxy in its pixels, (N, 4); labels, (N,); the source's place."""


def augmented(
    read: Callable[[int], Sample],
    index: int,
    among: Sequence[int],
    size: tuple[int, int],
    options: Augment,
    key: tuple[int, int],
    last_epochs: bool,
) -> Augmented:
    """Image ``index`` as it looks in an epoch.

    Args:
        read: gives an image by its number.
        index: the image.
        among: the images, it included, from which its partners are drawn; rising.
        size: the input's (H, W) in pixels.
        options: how images are varied.
        key: (seed, epoch).
        last_epochs: whether this is one of the last epochs, in which every image stands alone: without
            mosaic, mixup and copy-paste.

    Returns:
        What the network sees: boxes are clipped to the input, each at least a part of a pixel large. The
        place is of the cropped image before it was warped and mirrored; of a mosaic, the input itself.
    """
    made = _Varied(read, among, size, options, key, last_epochs)
    return made.mixed(index)


class _Varied:
    """The parts of :func:`varied`; see its arguments."""

    def __init__(
        self,
        read: Callable[[int], Sample],
        among: Sequence[int],
        size: tuple[int, int],
        options: Augment,
        key: tuple[int, int],
        alone: bool,
    ) -> None:
        self.read, self.among, self.size, self.options = read, among, size, options
        self.seed, self.epoch = key
        self.together = not alone and len(among) > 1
        self.mosaics = not alone

    def mixed(self, index: int) -> Augmented:
        """The input of an image, blended with another's if chance says so; the boxes of both count whole."""
        image, boxes, labels, where = self.placed(index)
        if not (self.options.mixup and self.together):
            return image, boxes, labels, where
        chance = generator(self.seed, "mix", self.epoch, index)
        if chance.random() >= self.options.mixup_chance:
            return image, boxes, labels, where
        share = float(chance.beta(self.options.mixup, self.options.mixup))
        other = self.placed(self._another(index, chance))
        boxes, labels = torch.cat((boxes, other[1])), torch.cat((labels, other[2]))
        return blended(image, other[0], share), boxes, labels, where

    def placed(self, index: int) -> Augmented:
        """The input of an image or of a mosaic around it, before it is blended."""
        image, boxes, labels, where = self._laid(index)
        return degrade(image, self.options, (self.seed, "augment", self.epoch, index)), boxes, labels, where

    def source(self, index: int) -> Sample:
        """An image with what is pasted into it, cropped."""
        sample = self.read(index)
        if self.options.copy_paste and self.together:
            chance = generator(self.seed, "copy-paste", self.epoch, index)
            if chance.random() < self.options.copy_paste:
                other = self.read(self._another(index, chance))
                sample = copy_paste(sample, other, self.size, chance)
        if self.options.crop >= 1:
            return sample
        return cropped(sample, self.options.crop, generator(self.seed, "crop", self.epoch, index))

    def _laid(self, index: int) -> Augmented:
        if self.options.mosaic and self.mosaics:
            chance = generator(self.seed, "mosaic", self.epoch, index)
            if chance.random() < self.options.mosaic:
                made = mosaic(self.source, index, self.among, self.size, self.options, chance)
                # The mosaic is its own source: no one image's place on it says where a box came from.
                return *made, Letterbox(1.0, 0.0, 0.0, *self.size)
        chance = generator(self.seed, "augment", self.epoch, index)
        sample = self.source(index)
        image, boxes, labels, where = augment(sample, self.size, self.options, chance)
        return image, boxes, labels, in_source(where, sample.reduced, sample.source)

    def _another(self, index: int, chance: np.random.Generator) -> int:
        """An image other than ``index``: some places after it, and after the last the first."""
        further = 1 + int(chance.integers(len(self.among) - 1))
        return self.among[(self.among.index(index) + further) % len(self.among)]
