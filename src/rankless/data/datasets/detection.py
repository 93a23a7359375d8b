"""Convert images with boxes to items, and items to padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.data import builtin
from rankless.data.augment.augmented import Augmenter
from rankless.data.augment.multi_scale import StepSizes, by_aspect, tight
from rankless.data.datasets.annotated import BoxedImages, DetectionImages, GroundTruth
from rankless.data.datasets.class_choice import refuse_classes
from rankless.data.datasets.open_split import opened
from rankless.data.formats.registry import format_named
from rankless.data.images.image_file import Shown, UnreadableImage
from rankless.data.images.sources import ImageExamples, Readable, ReadableImages
from rankless.errors import UserError, shell_word
from rankless.geometry.letterbox import Placing, in_source, stretched, to_input, whole
from rankless.recipe.durations import RunLength
from rankless.recipe.schema import Augment, Data
from rankless.structures import (
    IGNORED_LABEL,
    DetectionBatch,
    DetectionItem,
    Letterbox,
    Sample,
    Unreadable,
    stacked,
)


def placing_of(data: Data) -> Placing:
    """Return how images are resized and padded."""
    return Placing(data.resample != "darknet", data.pad)


def shown_in(size: tuple[int, int], data: Data) -> Shown:
    """Return how images are decoded for an input of (H, W) pixels."""
    # Decoding an image at a reduced size already averages its pixels.
    detail = data.detail if placing_of(data).antialias else 0.0
    return Shown(size, data.fit, detail, data.range)


@dataclass
class StretchedImages:
    """Images that are stretched to ``size``, the (H, W) of the input."""

    images: Readable[Sample]
    size: tuple[int, int]
    placing: Placing

    def read(self, index: int) -> Sample:
        sample = self.images.read(index)
        image, where = stretched(sample.image, self.size, self.placing)
        return Sample(image, to_input(sample.boxes, where), sample.labels)


class DetectionExamples(ImageExamples[DetectionImages]):
    """Training or evaluation data of a detector; see :class:`rankless.tasks.protocol.Examples`.

    Args:
        source: images with boxes.
        size: (H, W) of the input in pixels.
        seed: the recipe's seed.
        augment: augmentation options; None for evaluation.
        epochs: number of epochs of the run; None if it is unlimited.
        data: the recipe's section ``data``, which says how images are decoded, resized and cached.
        sizes: size of the input at every step, instead of ``size``.
        rectangular: whether images with similar aspect ratios share an input without unnecessary padding.
        batch: number of images per step.
    """

    def __init__(
        self,
        source: DetectionImages,
        size: tuple[int, int],
        seed: int,
        augment: Augment | None,
        epochs: int | None = None,
        data: Data | None = None,
        *,
        sizes: StepSizes | None = None,
        rectangular: bool = False,
        batch: int = 1,
    ) -> None:
        data = data or Data()
        # Images are decoded for the largest input, so that they are the same at every step.
        shown = shown_in(sizes.choices()[-1] if sizes else size, data)
        super().__init__(source, size, seed, shown, data.cache)
        self.augment, self.fit, self.placing = augment, data.fit, placing_of(data)
        self.run = RunLength(epochs, len(self), batch) if epochs is not None else None
        self.step_sizes, self.rectangular = sizes, rectangular
        degraded = augment is not None and (augment.blur or augment.noise)
        self.loader_imports = ("torchvision.transforms.v2",) if degraded else ()

    def item(self, index: int, epoch: int) -> DetectionItem:
        """Return the item of an image in the given epoch.

        An unreadable image is replaced with a randomly chosen image in training, and with a gray image in
        evaluation. Partner images are sampled from all images, because only :meth:`items` knows the
        micro-batch.
        """
        (item,) = self._items([(epoch, index)], self.size)
        return item

    def items(self, line: Sequence[tuple[int, int]], step: int) -> list[DetectionItem]:
        """Return the items of a micro-batch, given the (epoch, index) of each item and the training step.

        All items have the same input size.
        """
        size = self.size
        if self.step_sizes:
            size = self.step_sizes.of(step)
        elif self.rectangular:
            size = tight(self.images.sizes([index for _, index in line]), self.size)
        return self._items(line, size, step)

    def _items(
        self, line: Sequence[tuple[int, int]], size: tuple[int, int], step: int | None = None
    ) -> list[DetectionItem]:
        if self.augment is None:
            return [self._scored(index, size) for _, index in line]
        among: Sequence[int] = sorted({index for _, index in line})
        together = self.augment.partners == "batch" and len(among) > 1
        images: Readable[Sample] = self.images
        if self.fit == "stretch":
            images = StretchedImages(images, size, self.placing)
        reader: ReadableImages[Sample] = ReadableImages(
            images, len(self), self.seed, memo={} if together else None
        )
        among = among if together else range(len(self))
        items = []
        for epoch, index in line:
            last = self.run is not None and self.run.is_last(self.augment.close_mosaic, epoch, step)
            local = replace(reader, unreadable=[])
            augmenter = Augmenter(local, among, size, self.augment, (self.seed, epoch), last, self.placing)
            image, boxes, labels, where = augmenter.augmented(index)
            items.append(DetectionItem(image, boxes, labels, index, where, tuple(local.unreadable)))
        return items

    def _scored(self, index: int, size: tuple[int, int]) -> DetectionItem:
        """Return the item of an image for evaluation; an unreadable image is gray and has no boxes."""
        try:
            sample = self.images.read(index)
        except UnreadableImage as error:
            gray = torch.full((3, *size), self.placing.gray, dtype=torch.uint8)
            nothing = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
            missing = Unreadable(index, error.path, error.reason)
            return DetectionItem(gray, *nothing, index, Letterbox(1.0, 0.0, 0.0, *size), (missing,))
        image, where = whole(sample.image, size, self.fit, self.size, self.placing)
        boxes = to_input(sample.boxes, where)
        where = in_source(where, sample.reduced, sample.source)
        return DetectionItem(image, boxes, sample.labels, index, where)

    def ground_truth(self, index: int) -> GroundTruth:
        """Return the annotated objects of an image."""
        return self.images.ground_truth(index)

    def facts(self, step: int) -> dict[str, Any]:
        """Return a step's fields for the journal: the input ``size``, if it varies."""
        return {"size": list(self.step_sizes.of(step))} if self.step_sizes else {}

    def evaluation_order(self) -> NDArray[np.int64] | None:
        """Return the order, (N,), in which images are evaluated, or None for the order of the data."""
        return by_aspect(self.images.sizes(range(len(self)))) if self.rectangular else None


def collate(items: Sequence[DetectionItem]) -> DetectionBatch:
    """Stack items into a batch, with boxes and labels padded with zeros to the longest item."""
    objects = [item.labels != IGNORED_LABEL for item in items]
    boxes, valid = _padded([item.boxes[mask] for item, mask in zip(items, objects, strict=True)])
    labels = valid.long()  # (B, T)
    labels[valid] = torch.cat([item.labels[mask] for item, mask in zip(items, objects, strict=True)])
    ignored = None
    if not all(mask.all() for mask in objects):
        ignored, _ = _padded([item.boxes[~mask] for item, mask in zip(items, objects, strict=True)])
    images = stacked([item.image for item in items])  # (B, 3, H, W)
    letterboxes = [item.letterbox for item in items]
    unreadable = [one for item in items for one in item.unreadable]
    return DetectionBatch(
        images, boxes, labels, valid, [item.index for item in items], letterboxes, unreadable, ignored
    )


def _padded(lists: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the boxes of all images, (B, N, 4), padded with zeros, and a mask of the boxes, (B, N)."""
    counts = torch.tensor([len(boxes) for boxes in lists])
    valid = torch.arange(max(1, int(counts.max()))) < counts.unsqueeze(1)
    padded = torch.zeros(*valid.shape, 4)
    padded[valid] = torch.cat(list(lists)).float()
    return padded, valid


def open_images(
    data: Data, split: str, images: int, seed: int = 0, size: tuple[int, int] | None = None
) -> DetectionImages:
    """Open the images of a split for detection.

    Built-in data has ``images`` images with this ``seed`` and ``size``, the (H, W) of the network's input.
    """
    if made := builtin.named(data.root):
        refuse_classes(made.TITLE, data.classes, data.ignore_class)
        return made.detection(split, images, seed, size or made.SIZE)
    annotations = opened(data, split)
    if not annotations.has_boxes:
        raise UserError(
            f"{data.root}: read as {format_named(annotations.format).TITLE} with one class per image and no "
            "boxes; expected boxes for a detector; train a classifier with `rankless train resnet18 "
            f"data.root={shell_word(data.root)}`, or set data.format if the format is wrong"
        )
    return BoxedImages(annotations)
