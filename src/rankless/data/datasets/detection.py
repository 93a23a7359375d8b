"""Detection data as the engine sees it: images with boxes become items, items become padded batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.data.augment.augmented import augmented
from rankless.data.augment.multi_scale import StepSizes
from rankless.data.datasets.annotated import BoxedImages
from rankless.data.datasets.builtin import DigitScenes
from rankless.data.datasets.memoize import once
from rankless.data.datasets.opening import open_annotations
from rankless.data.datasets.rectangles import by_aspect, tight
from rankless.data.images.image_cache import kept
from rankless.data.images.image_file import Shown, UnreadableImage
from rankless.data.images.replacing import readable
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.errors import UserError
from rankless.geometry.letterbox import GRAY, Fit, in_source, stretched, to_input, whole
from rankless.recipe.schema import Augment
from rankless.structures import DetectionBatch, DetectionItem, Letterbox, Sample, Unreadable

DIGITS = "digits"
"""The root that names the built-in data."""


class Images(Protocol):
    """A source of images with ground truth. Must pickle."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """A label is a position in this list."""
        ...

    def __len__(self) -> int: ...

    def sample(self, index: int) -> Sample: ...

    def source(self, index: int) -> str:
        """Where image ``index`` comes from, for reports."""
        ...


@runtime_checkable
class _KnowsTruth(Protocol):
    """Images whose ground truth is known without decoding them."""

    def ground_truth(self, index: int) -> tuple[Tensor, Tensor, int, int, Tensor, Tensor]: ...


@dataclass(frozen=True)
class GroundTruth:
    """What is to be found in one image, in its own pixels.

    Attributes:
        boxes: float32 xyxy, (N, 4).
        labels: int64, (N,).
        height, width: the image's size.
        flags: bits of :data:`~rankless.data.index.annotations.DIFFICULT` and ``CROWD``, of what
            counts neither as found nor as missed, (N,); None is nothing.
        areas: of the objects in pixels, NaN where only the box is known, (N,); None is nowhere.
    """

    boxes: Tensor
    labels: Tensor
    height: int
    width: int
    flags: Tensor | None = None
    areas: Tensor | None = None

    @property
    def difficult(self) -> Tensor | None:
        """What is marked difficult, bool (N,); None is nothing."""
        return None if self.flags is None else (self.flags.to(torch.uint8) & DIFFICULT) > 0

    @property
    def crowd(self) -> Tensor | None:
        """What marks a crowd, bool (N,); None is nothing."""
        return None if self.flags is None else (self.flags.to(torch.uint8) & CROWD) > 0


class DetectionExamples:
    """Images as network inputs; a :class:`rankless.tasks.protocol.Examples`.

    Args:
        images: the source.
        size: the network's input (H, W) in pixels.
        seed: the recipe's; keys the augmentation.
        augment: how images are varied; None only letterboxes them, as evaluation and prediction do.
        epochs: of the whole run, by which the last ones are known; None knows no end.
        fit: keeps an image's aspect or stretches it to the input, before all that varies it.
        sizes: of the input step by step, in place of ``size``.
        rectangular: whether images of like aspect come one after another, on inputs no larger than they
            need.
        detail: how far images may be reduced while they are decoded; see :class:`Shown`.
        cache: where decoded images are kept.

    Attributes:
        notes: what was clipped, missing or left out when the images were opened, as sentences.
        loader_imports: modules that take long to import, for loader processes to have before they are forked.
    """

    def __init__(
        self,
        samples: Images,
        size: tuple[int, int],
        seed: int,
        augment: Augment | None,
        epochs: int | None = None,
        fit: Fit = "letterbox",
        *,
        sizes: StepSizes | None = None,
        rectangular: bool = False,
        detail: float = 2.0,
        cache: Literal["none", "ram", "disk"] = "none",
    ) -> None:
        self.size = size
        self.seed = seed
        self.augment = augment
        self.epochs = epochs
        self.fit = fit
        self.sizes = sizes
        self.rectangular = rectangular
        # As detailed as the largest input asks for, so that an image is the same in every step.
        self.shown = Shown(sizes.choices()[-1] if sizes else size, fit, detail)
        self.images, said = kept(samples, cache, self.shown)
        self.notes: tuple[str, ...] = (*getattr(samples, "notes", ()), *said)
        degraded = augment is not None and (augment.blur or augment.noise)
        self.loader_imports = ("torchvision.transforms.v2",) if degraded else ()

    def __len__(self) -> int:
        return len(self.images)

    @property
    def digest(self) -> str | None:
        """Another one when what is annotated is; None of images that come from no files."""
        annotations: Annotations | None = getattr(self.images, "annotations", None)
        return None if annotations is None else annotations.digest()

    def item(self, index: int, epoch: int, size: tuple[int, int] | None = None) -> DetectionItem:
        """Image ``index`` as it looks in ``epoch`` at ``size``: a function of these and of the seed alone.

        In training a keyed other image stands in for one that cannot be read; to be scored it is gray.
        Partners are of the whole data: of a micro-batch only :meth:`items` knows.

        Raises:
            UnreadableImage: in training, when the others cannot be read either.
        """
        shape = size or self.size
        if self.augment is None:
            return self._plain(index, shape)
        return self._varied(index, epoch, shape, self.augment, self._reader(shape), range(len(self)))

    def items(self, line: Sequence[tuple[int, int]], step: int) -> list[DetectionItem]:
        """The images (epoch, index) of one micro-batch of ``step``, all on an input of one size."""
        size = self.size
        if self.sizes:
            size = self.sizes.of(step)
        elif self.rectangular:
            size = tight(self._image_sizes([index for _, index in line]), self.size)
        among = sorted({index for _, index in line})
        if self.augment is None or self.augment.partners == "data" or len(among) == 1:
            return [self.item(index, epoch, size) for epoch, index in line]
        read = once(self._reader(size))
        return [self._varied(index, epoch, size, self.augment, read, among) for epoch, index in line]

    def facts(self, step: int) -> dict[str, Any]:
        """What the journal says of a step: the input's ``size`` where it changes."""
        return {"size": list(self.sizes.of(step))} if self.sizes else {}

    def evaluation_order(self) -> NDArray[np.int64] | None:
        """The order in which images are predicted, (N,); None is their own."""
        return by_aspect(self._image_sizes(range(len(self)))) if self.rectangular else None

    def _varied(
        self,
        index: int,
        epoch: int,
        size: tuple[int, int],
        augment: Augment,
        read: Callable[[int], Sample],
        among: Sequence[int],
    ) -> DetectionItem:
        """Image ``index`` to be trained on, with partners from ``among``."""
        unreadable: list[Unreadable] = []

        def found(number: int) -> Sample:
            return readable(read, number, len(self), self.seed, unreadable)

        last = self.epochs is not None and epoch >= self.epochs - augment.close_mosaic
        made = augmented(found, index, among, size, augment, (self.seed, epoch), last)
        image, boxes, labels, where = made
        return DetectionItem(image, boxes, labels, index, where, tuple(unreadable))

    def _plain(self, index: int, size: tuple[int, int]) -> DetectionItem:
        """Image ``index`` as it is scored; gray and without boxes if it cannot be read."""
        try:
            sample = decoded(self.images, index, self.shown)
        except UnreadableImage as error:
            gray = torch.full((3, *size), GRAY, dtype=torch.uint8)
            nothing = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
            missing = Unreadable(index, error.path, error.reason)
            return DetectionItem(gray, *nothing, index, Letterbox(1.0, 0.0, 0.0, *size), (missing,))
        image, where = whole(sample.image, size, self.fit, self.size)
        boxes = to_input(sample.boxes, where)
        where = in_source(where, sample.reduced, sample.source)
        return DetectionItem(image, boxes, sample.labels, index, where)

    def _reader(self, size: tuple[int, int]) -> Callable[[int], Sample]:
        """What gives an image before it is varied; stretched already, if it is to be."""

        def read(index: int) -> Sample:
            sample = decoded(self.images, index, self.shown)
            if self.fit == "letterbox":
                return sample
            image, where = stretched(sample.image, size)
            return Sample(image, to_input(sample.boxes, where), sample.labels)

        return read

    def _image_sizes(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """Height and width of these images, (B, 2); 0, 0 where one cannot be read."""
        known = getattr(self.images, "sizes", None)
        if known is not None:
            found: NDArray[np.int64] = np.asarray(known)[np.asarray(indices)].astype(np.int64)
            return found
        truths = [self.ground_truth(index) for index in indices]
        return np.array([[truth.height, truth.width] for truth in truths], dtype=np.int64)

    def ground_truth(self, index: int) -> GroundTruth:
        """The unaltered truth of image ``index``, for scoring; files are not decoded for it."""
        return ground_truth(self.images, index)


def decoded(samples: Images, index: int, shown: Shown | None) -> Sample:
    """Image ``index``, reduced as ``shown`` allows by a source that has ``shown_sample(index, shown)``."""
    reduced: Callable[[int, Shown | None], Sample] | None = getattr(samples, "shown_sample", None)
    return samples.sample(index) if reduced is None else reduced(index, shown)


def ground_truth(samples: Images, index: int) -> GroundTruth:
    """What is to be found in image ``index``; a file is not decoded for it."""
    if isinstance(samples, _KnowsTruth):
        return GroundTruth(*samples.ground_truth(index))
    sample = samples.sample(index)
    return GroundTruth(sample.boxes, sample.labels, sample.image.shape[1], sample.image.shape[2])


def collate(items: Sequence[DetectionItem]) -> DetectionBatch:
    """Items as one batch, targets padded with zeros to the longest list, which counts as 1 at least."""
    longest = max(1, *(len(item.labels) for item in items))
    boxes = torch.zeros(len(items), longest, 4)  # (B, T, 4)
    labels = torch.zeros(len(items), longest, dtype=torch.int64)  # (B, T)
    valid = torch.zeros(len(items), longest, dtype=torch.bool)
    for number, item in enumerate(items):
        count = len(item.labels)
        boxes[number, :count], labels[number, :count], valid[number, :count] = item.boxes, item.labels, True
    images = torch.stack([item.image for item in items]).contiguous()  # (B, 3, H, W)
    places = [item.letterbox for item in items]
    unreadable = [one for item in items for one in item.unreadable]
    return DetectionBatch(images, boxes, labels, valid, [item.index for item in items], places, unreadable)


def open_images(
    root: str,
    split: str,
    *,
    images: int,
    seed: int,
    size: tuple[int, int],
    format: str = "auto",
    max_bad: float = 1.0,
) -> DigitScenes | BoxedImages:
    """The images of one split.

    Args:
        root: ``digits``, a folder, or a file such as a ``data.yaml``.
        split: the split's name.
        images, seed, size: how many scenes the built-in data makes, what keys them and their (H, W) in
            pixels; other data brings its own.
        format, max_bad: of :func:`rankless.data.datasets.opening.open_annotations`.

    Raises:
        UserError: nothing at ``root``, faulty data, or images without boxes.
    """
    if root == DIGITS:
        return DigitScenes(split, images, seed, size)
    found = open_annotations(root, split, format, max_bad=max_bad)
    if not found.has_boxes:
        raise UserError(
            f"{root}: read as '{found.format}', which gives every image a class and no boxes, but 'task: "
            "detect' needs boxes. Set 'task: classify', or data.format if the data is of another format."
        )
    return BoxedImages(found)
