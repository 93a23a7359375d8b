"""Turn images with boxes into items, and items into padded batches for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankless.data.augment.augmented import Augmenter
from rankless.data.augment.multi_scale import StepSizes, by_aspect, tight
from rankless.data.datasets.annotated import BoxedImages, DetectionImages, GroundTruth
from rankless.data.datasets.builtin import DIGITS, DigitScenes
from rankless.data.datasets.class_choice import Classes, refuse_classes
from rankless.data.datasets.open_split import open_annotations
from rankless.data.formats.registry import format_named
from rankless.data.images.image_file import Shown, UnreadableImage
from rankless.data.images.sources import Cache, ImageExamples, Readable, ReadableImages
from rankless.errors import UserError, shell_word
from rankless.geometry.letterbox import USUAL, Fit, Placing, in_source, stretched, to_input, whole
from rankless.recipe.durations import RunLength
from rankless.recipe.schema import Augment
from rankless.structures import DetectionBatch, DetectionItem, Letterbox, Sample, Unreadable, stacked


@dataclass
class StretchedImages:
    """A data set whose images are stretched to the input's (H, W)."""

    images: Readable[Sample]
    size: tuple[int, int]
    placing: Placing

    def read(self, index: int) -> Sample:
        """Return image ``index`` and its boxes, stretched to the input's size."""
        sample = self.images.read(index)
        image, where = stretched(sample.image, self.size, self.placing)
        return Sample(image, to_input(sample.boxes, where), sample.labels)


class DetectionExamples(ImageExamples[DetectionImages]):
    """Images with boxes as network inputs. Implements :class:`rankless.tasks.protocol.Examples`.

    Args:
        source: the images.
        size: the network's input (H, W) in pixels.
        seed: the recipe's seed, which keys the augmentation.
        augment: the augmentation; None places images as in evaluation and prediction.
        epochs: the length of the run; None if it has no end.
        fit: how an image is placed on the input.
        placing: how images are resized, and the gray value of the margin.
        sizes: the input's size at every step, which replaces ``size``.
        rectangular: whether images of similar aspect share an input that is no larger than needed.
        detail: how far images may be reduced while they are decoded; see :class:`Shown`.
        cache: where decoded images are cached.
        batch: the number of images per step.

    Attributes:
        loader_imports: slow modules that the loader server imports before it forks loader processes.
    """

    def __init__(
        self,
        source: DetectionImages,
        size: tuple[int, int],
        seed: int,
        augment: Augment | None,
        epochs: int | None = None,
        fit: Fit = "letterbox",
        *,
        placing: Placing = USUAL,
        sizes: StepSizes | None = None,
        rectangular: bool = False,
        detail: float = 2.0,
        cache: Cache = "none",
        batch: int = 1,
    ) -> None:
        # Decoded for the largest input, so that an image is the same at every step.
        shown = Shown(sizes.choices()[-1] if sizes else size, fit, detail)
        super().__init__(source, size, seed, shown, cache)
        self.augment, self.fit, self.placing = augment, fit, placing
        self.run = RunLength(epochs, len(self), batch) if epochs is not None else None
        self.step_sizes, self.rectangular = sizes, rectangular
        degraded = augment is not None and (augment.blur or augment.noise)
        self.loader_imports = ("torchvision.transforms.v2",) if degraded else ()

    def item(self, index: int, epoch: int) -> DetectionItem:
        """Return image ``index`` as augmented in ``epoch``; apart from these, it depends only on the seed.

        An unreadable image is replaced by another one that is drawn by key in training, and by gray in
        evaluation. Partner images are drawn from all images, because only :meth:`items` knows the
        micro-batch.
        """
        (item,) = self._items([(epoch, index)], self.size)
        return item

    def items(self, line: Sequence[tuple[int, int]], step: int) -> list[DetectionItem]:
        """Return the items of a micro-batch, all on inputs of the same size.

        ``line`` holds an (epoch, index) pair for each item; ``step`` is the step of the micro-batch.
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
        """Return image ``index`` for evaluation; an unreadable image is gray and has no boxes."""
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
        """Return the original objects of image ``index`` without decoding its file."""
        return self.images.ground_truth(index)

    def facts(self, step: int) -> dict[str, Any]:
        """Return the journal fields of ``step``, which are the input's ``size`` if it varies."""
        return {"size": list(self.step_sizes.of(step))} if self.step_sizes else {}

    def evaluation_order(self) -> NDArray[np.int64] | None:
        """Return the order in which images are predicted, (N,), or None for the data's order."""
        return by_aspect(self.images.sizes(range(len(self)))) if self.rectangular else None


def collate(items: Sequence[DetectionItem]) -> DetectionBatch:
    """Stack items into one batch, padding boxes and labels with zeros to the longest list, at least 1."""
    longest = max(1, *(len(item.labels) for item in items))
    boxes = torch.zeros(len(items), longest, 4)  # (B, T, 4)
    labels = torch.zeros(len(items), longest, dtype=torch.int64)  # (B, T)
    valid = torch.zeros(len(items), longest, dtype=torch.bool)
    for number, item in enumerate(items):
        count = len(item.labels)
        boxes[number, :count], labels[number, :count], valid[number, :count] = item.boxes, item.labels, True
    images = stacked([item.image for item in items])  # (B, 3, H, W)
    letterboxes = [item.letterbox for item in items]
    unreadable = [one for item in items for one in item.unreadable]
    return DetectionBatch(
        images, boxes, labels, valid, [item.index for item in items], letterboxes, unreadable
    )


def open_images(
    root: str,
    split: str,
    *,
    images: int,
    seed: int,
    size: tuple[int, int],
    format: str = "auto",
    classes: Classes = "auto",
    max_bad: float = 1.0,
) -> DetectionImages:
    """Open the images of one split; see :func:`open_annotations` for the arguments.

    If ``root`` is ``digits``, ``images`` is the number of scenes, ``seed`` their seed and ``size`` their
    (H, W).
    """
    if root == DIGITS:
        refuse_classes(classes)
        return DigitScenes(split, images, seed, size)
    annotations = open_annotations(root, split, format, classes=classes, max_bad=max_bad)
    if not annotations.has_boxes:
        raise UserError(
            f"{root}: read as {format_named(annotations.format).TITLE}, in which each image has a class and "
            "no boxes, but a detector needs boxes; train a classifier: rankless train resnet18 "
            f"data.root={shell_word(root)}, or set data.format if the data has another format"
        )
    return BoxedImages(annotations)
