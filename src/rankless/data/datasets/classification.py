"""Classification data as the engine sees it: images of one class each become items with soft targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from rankless.data.augment.mixing import cutmix, mixup, target_of
from rankless.data.datasets.annotated import ClassifiedImages
from rankless.data.datasets.builtin_digits import DigitImages
from rankless.data.datasets.classification_input import augment, place, shown_as
from rankless.data.datasets.opening import open_annotations
from rankless.data.images.image_cache import kept
from rankless.data.images.image_file import Shown, UnreadableImage
from rankless.data.images.replacing import readable
from rankless.data.index.annotations import Annotations
from rankless.errors import UserError
from rankless.geometry.letterbox import GRAY
from rankless.randomness import generator
from rankless.recipe.schema import Augment
from rankless.structures import ClassificationBatch, ClassificationItem, Unreadable

DIGITS = "digits"
"""The root that names the built-in data."""


class Images(Protocol):
    """A source of images of one class each. Must pickle."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """A label is a position in this list."""
        ...

    def __len__(self) -> int: ...

    def image(self, index: int) -> Tensor:
        """uint8 RGB, (3, H, W)."""
        ...

    def label(self, index: int) -> int: ...

    def source(self, index: int) -> str:
        """Where image ``index`` comes from, for reports."""
        ...


class ClassificationExamples:
    """Images as network inputs; a :class:`rankless.tasks.protocol.Examples`.

    Args:
        images: the source.
        size: the network's input (H, W) in pixels.
        seed: the recipe's; keys the augmentation.
        augment: how the recipe varies training images; its ``crop`` decides how an image is placed.
        varied: whether they are varied; if not, they are placed as in evaluation and prediction.
        epochs: of the whole run, by which the last ones are known; None knows no end.
        detail: how far images may be reduced while they are decoded; see :func:`shown_as`.
        cache: where decoded images are kept.

    Attributes:
        notes: what was divided or left out when the images were opened, as sentences.
    """

    def __init__(
        self,
        samples: Images,
        size: tuple[int, int],
        seed: int,
        augment: Augment,
        *,
        augmented: bool,
        epochs: int | None = None,
        detail: float = 2.0,
        cache: Literal["none", "ram", "disk"] = "none",
    ) -> None:
        self.size = size
        self.seed = seed
        self.augment = augment
        self.augmented = augmented
        self.epochs = epochs
        self.shown = shown_as(size, augment.crop < 1, detail)
        self.images, said = kept(samples, cache, self.shown)
        self.notes: tuple[str, ...] = (*getattr(samples, "notes", ()), *said)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def digest(self) -> str | None:
        """Another one when what is annotated is; None of images that come from no files."""
        annotations: Annotations | None = getattr(self.images, "annotations", None)
        return None if annotations is None else annotations.digest()

    def item(self, index: int, epoch: int) -> ClassificationItem:
        """Image ``index`` as it looks in ``epoch``: a function of the two and of the seed alone.

        An image is mixed with one drawn from the whole data by its own key, never with its neighbors in
        the batch: how a batch is cut into micro-batches must not matter. In training a keyed other one stands
        in for an image that cannot be read; to be scored it is gray.

        Raises:
            UnreadableImage: in training, when those that stand in for it cannot be read either.
        """
        if not self.augmented:
            return self._plain(index)
        unreadable: list[Unreadable] = []
        image, target = self._view(index, epoch, unreadable)
        ways = [way for way in ("mixup", "cutmix") if getattr(self.augment, way)]
        if ways and self._is_mixed(index, epoch):
            chance = generator(self.seed, "mix", epoch, index)
            partner = self._view(int(chance.integers(len(self))), epoch, unreadable)
            way = ways[int(chance.integers(len(ways)))]
            mix = mixup if way == "mixup" else cutmix
            image, target = mix((image, target), partner, getattr(self.augment, way), chance)
        return ClassificationItem(image, target, index, tuple(unreadable))

    def _is_mixed(self, index: int, epoch: int) -> bool:
        """Whether chance takes the image; in the last epochs it takes none."""
        if self.epochs is not None and epoch >= self.epochs - self.augment.close_mosaic:
            return False
        return generator(self.seed, "mixed", epoch, index).random() < self.augment.mixup_chance

    def labels(self) -> Tensor:
        """The class of every image, int64 (N,)."""
        return torch.tensor([self.images.label(index) for index in range(len(self))], dtype=torch.int64)

    def _image(self, index: int) -> Tensor:
        """Image ``index`` as it was decoded, reduced where it is shown small."""
        reduced: Callable[[int, Shown], Tensor] | None = getattr(self.images, "shown_image", None)
        return self.images.image(index) if reduced is None else reduced(index, self.shown)

    def _view(self, index: int, epoch: int, unreadable: list[Unreadable]) -> tuple[Tensor, Tensor]:
        """The image, or one that stands in for it, before it is mixed, and its target."""

        def read(number: int) -> tuple[Tensor, int]:
            return self._image(number), self.images.label(number)

        source, label = readable(read, index, len(self), self.seed, unreadable)
        image = augment(source, self.size, self.augment, (self.seed, "augment", epoch, index))
        return image, target_of(label, len(self.images.class_names))

    def _plain(self, index: int) -> ClassificationItem:
        """Image ``index`` as it is scored; gray if it cannot be read."""
        target = target_of(self.images.label(index), len(self.images.class_names))
        try:
            image = self._image(index)
        except UnreadableImage as error:
            gray = torch.full((3, *self.size), GRAY, dtype=torch.uint8)
            return ClassificationItem(gray, target, index, (Unreadable(index, error.path, error.reason),))
        return ClassificationItem(place(image, self.size, cropped=self.augment.crop < 1), target, index)


def collate(items: Sequence[ClassificationItem]) -> ClassificationBatch:
    """Items as one batch."""
    images = torch.stack([item.image for item in items]).contiguous()  # (B, 3, H, W)
    targets = torch.stack([item.target for item in items])  # (B, C)
    unreadable = [one for item in items for one in item.unreadable]
    return ClassificationBatch(images, targets, [item.index for item in items], unreadable)


def open_images(
    root: str,
    split: str,
    class_names: Sequence[str] | None = None,
    *,
    format: str = "auto",
    max_bad: float = 1.0,
) -> DigitImages | ClassifiedImages:
    """The images of one split.

    Args:
        root: ``digits`` or a folder.
        split: the split's name.
        class_names: of the model; None takes the data's own.
        format, max_bad: see :func:`rankless.data.datasets.opening.open_annotations`.

    Raises:
        UserError: nothing at ``root``, faulty data, data with boxes, or other classes than the model's.
    """
    if root != DIGITS:
        found = open_annotations(root, split, format, max_bad=max_bad)
        if found.has_boxes:
            raise UserError(
                f"{found.about[0]}: its images have boxes, expected one class for each. Set task: detect, "
                "or give data with a folder per class."
            )
        return ClassifiedImages(found, class_names, f"{root}, split '{split}'")
    digits = DigitImages(split)
    if class_names is not None and tuple(class_names) != digits.class_names:
        raise UserError(
            f"The built-in digits have the classes 0 to 9, but the model has {len(class_names)} others "
            f"({', '.join(class_names[:8])}): give the data it was trained for, or train anew."
        )
    return digits
