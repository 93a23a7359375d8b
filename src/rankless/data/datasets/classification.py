"""Convert images with classes to items with soft targets, and items to batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankless.data import builtin
from rankless.data.augment.mixing import cutmix, mixup, target_of
from rankless.data.datasets.annotated import ClassificationImages, ClassifiedImages
from rankless.data.datasets.class_choice import refuse_classes
from rankless.data.datasets.class_matching import Pairs
from rankless.data.datasets.classification_input import augment, place, shown_as
from rankless.data.datasets.open_split import opened
from rankless.data.images.image_file import UnreadableImage
from rankless.data.images.sources import ImageExamples, ReadableImages
from rankless.errors import UserError, listed, shell_word
from rankless.geometry.letterbox import GRAY
from rankless.randomness import generator
from rankless.recipe.durations import RunLength
from rankless.recipe.schema import Augment, Data
from rankless.structures import ClassificationBatch, ClassificationItem, Unreadable, stacked


class ClassificationExamples(ImageExamples[ClassificationImages]):
    """Training or evaluation data of a classifier; see :class:`rankless.tasks.protocol.Examples`.

    Args:
        source: images with classes.
        size: (H, W) of the input in pixels.
        seed: the recipe's seed.
        augment: augmentation options. For evaluation, ``crop`` determines whether images are cropped.
        augmented: whether to augment the images, as in training.
        epochs: number of epochs of the run; None if it is unlimited.
        batch: number of images per step.
        data: the recipe's section ``data``, which says how images are decoded and cached.
    """

    def __init__(
        self,
        source: ClassificationImages,
        size: tuple[int, int],
        seed: int,
        augment: Augment,
        *,
        augmented: bool,
        epochs: int | None = None,
        batch: int = 1,
        data: Data | None = None,
    ) -> None:
        data = data or Data()
        shown = shown_as(size, augment.crop < 1, data.detail, data.range)
        super().__init__(source, size, seed, shown, data.cache)
        self.augment, self.augmented = augment, augmented
        self.run = RunLength(epochs, len(self), batch) if epochs is not None else None

    def items(self, line: Sequence[tuple[int, int]], step: int) -> list[ClassificationItem]:
        """Return the items of a micro-batch, given the (epoch, index) of each item and the training step."""
        return [self.item(index, epoch, step) for epoch, index in line]

    def item(self, index: int, epoch: int, step: int | None = None) -> ClassificationItem:
        """Return the item of an image in the given epoch.

        The partner for mixing is sampled from all images, not from the batch, so the result does not depend
        on the division into micro-batches. An unreadable image is replaced with a randomly chosen image in
        training, and with a gray image in evaluation.
        """
        if not self.augmented:
            return self._scored(index)
        images = ReadableImages(self.images, len(self), self.seed)
        image, target = self._augmented(images, index, epoch)
        alphas = {mixup: self.augment.mixup, cutmix: self.augment.cutmix}
        mixes = [mix for mix, alpha in alphas.items() if alpha]
        last = self.run is not None and self.run.is_last(self.augment.close_mosaic, epoch, step)
        probability = self.augment.mixup_probability if mixes and not last else 0.0
        if probability and generator(self.seed, "mixed", epoch, index).random() < probability:
            rng = generator(self.seed, "mix", epoch, index)
            partner = self._augmented(images, int(rng.integers(len(self))), epoch)
            mix = mixes[int(rng.integers(len(mixes)))]
            image, target = mix((image, target), partner, alphas[mix], rng)
        return ClassificationItem(image, target, index, tuple(images.unreadable))

    def labels(self) -> Tensor:
        """Return the class ids, int64 (N,), of all images."""
        return torch.tensor([self.images.label(index) for index in range(len(self))], dtype=torch.int64)

    def _augmented(self, images: ReadableImages[Tensor], index: int, epoch: int) -> tuple[Tensor, Tensor]:
        image = images.read(index)
        image = augment(image, self.size, self.augment, (self.seed, "augment", epoch, index))
        return image, self._target(images.position)

    def _target(self, index: int) -> Tensor:
        return target_of(self.images.label(index), len(self.images.class_names))

    def _scored(self, index: int) -> ClassificationItem:
        """Return the item of an image for evaluation; an unreadable image is gray."""
        try:
            image = place(self.images.read(index), self.size, cropped=self.augment.crop < 1)
        except UnreadableImage as error:
            image = torch.full((3, *self.size), GRAY, dtype=torch.uint8)
            missing = (Unreadable(index, error.path, error.reason),)
            return ClassificationItem(image, self._target(index), index, missing)
        return ClassificationItem(image, self._target(index), index)


def collate(items: Sequence[ClassificationItem]) -> ClassificationBatch:
    """Stack items into one batch."""
    images = stacked([item.image for item in items])  # (B, 3, H, W)
    targets = torch.stack([item.target for item in items])  # (B, C)
    unreadable = [one for item in items for one in item.unreadable]
    return ClassificationBatch(images, targets, [item.index for item in items], unreadable)


def open_images(
    data: Data, split: str, class_names: Sequence[str] | None = None, given: Pairs = ()
) -> ClassificationImages:
    """Open the images of a split for classification; see :class:`ClassifiedImages`."""
    root = data.root
    if made := builtin.named(root):
        refuse_classes(made.TITLE, data.classes)
        images = made.classification(split)
        if class_names is not None and tuple(class_names) != images.class_names:
            raise UserError(
                f"{root}: the built-in data has the classes {listed(images.class_names)}, but the model has "
                f"the classes {listed(class_names)}; use the data that the model was trained on"
            )
        return images
    annotations = opened(data, split)
    if annotations.has_boxes:
        raise UserError(
            f"{annotations.about[0]} with boxes; expected one class per image for a classifier; train a "
            f"detector with `rankless train yolov4-tiny data.root={shell_word(root)}`, or use data with "
            "one folder per class"
        )
    return ClassifiedImages(annotations, class_names, f"{root}, split '{split}'", given)
