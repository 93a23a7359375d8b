"""Detection data as the engine sees it: pictures with boxes become items, items become padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from rankless.data.annotations import CROWD, DIFFICULT
from rankless.data.builtin import DigitScenes
from rankless.data.formats.darknet import DarknetData, read_darknet
from rankless.data.formats.voc import VocData, read_voc
from rankless.data.formats.voc_layout import is_voc
from rankless.data.letterbox import Fit, stretched, to_input, whole
from rankless.data.varied import varied
from rankless.recipe import Augment
from rankless.types import DetectionBatch, DetectionItem, Picture

DIGITS = "digits"
"""The root that names the built-in data."""


class Pictures(Protocol):
    """A source of pictures with ground truth. Must pickle."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """A label is a position in this list."""
        ...

    def __len__(self) -> int: ...

    def picture(self, index: int) -> Picture: ...

    def source(self, index: int) -> str:
        """Where picture ``index`` comes from, for reports."""
        ...


@runtime_checkable
class _KnowsTruth(Protocol):
    """Pictures whose ground truth is known without decoding them."""

    def ground_truth(
        self, index: int
    ) -> (
        tuple[Tensor, Tensor, int, int]
        | tuple[Tensor, Tensor, int, int, Tensor]
        | tuple[Tensor, Tensor, int, int, Tensor, Tensor]
    ): ...


@dataclass(frozen=True)
class GroundTruth:
    """What is to be found in one picture, in its own pixels.

    Attributes:
        boxes: float32 xyxy, (N, 4).
        labels: int64, (N,).
        height, width: the picture's size.
        flags: bits of :data:`~rankless.data.annotations.DIFFICULT` and ``CROWD``, of what counts neither as
            found nor as missed, (N,); None is nothing.
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
    """Pictures as network inputs; a :class:`rankless.tasks.protocol.Examples`.

    Args:
        pictures: the source.
        size: the network's input (H, W) in pixels.
        seed: the recipe's; keys the augmentation.
        augment: how pictures are varied; None only letterboxes them, as evaluation and prediction do.
        epochs: of the whole run, by which the last ones are known; None knows no end.
        fit: keeps a picture's aspect or stretches it to the input, before all that varies it.

    Attributes:
        notes: what was clipped, missing or left out when the pictures were opened, as sentences.
    """

    def __init__(
        self,
        pictures: Pictures,
        size: tuple[int, int],
        seed: int,
        augment: Augment | None,
        epochs: int | None = None,
        fit: Fit = "letterbox",
    ) -> None:
        self.pictures = pictures
        self.size = size
        self.seed = seed
        self.augment = augment
        self.epochs = epochs
        self.fit = fit
        self.notes: tuple[str, ...] = tuple(getattr(pictures, "notes", ()))

    def __len__(self) -> int:
        return len(self.pictures)

    def item(self, index: int, epoch: int) -> DetectionItem:
        """Picture ``index`` as it looks in ``epoch``: a function of the two and of the seed alone.

        Raises:
            UnreadablePicture: its file, or that of another that it is drawn with, is missing or damaged.
        """
        if self.augment is None:
            picture = self.pictures.picture(index)
            image, where = whole(picture.image, self.size, self.fit)
            return DetectionItem(image, to_input(picture.boxes, where), picture.labels, index, where)
        last = self.epochs is not None and epoch >= self.epochs - self.augment.close_mosaic
        key = self.seed, epoch
        made = varied(self._picture, index, len(self), self.size, self.augment, key, last)
        image, boxes, labels, where = made
        return DetectionItem(image, boxes, labels, index, where)

    def _picture(self, index: int) -> Picture:
        """Picture ``index`` before it is varied; stretched already, if it is to be."""
        picture = self.pictures.picture(index)
        if self.fit == "letterbox":
            return picture
        image, where = stretched(picture.image, self.size)
        return Picture(image, to_input(picture.boxes, where), picture.labels)

    def ground_truth(self, index: int) -> GroundTruth:
        """The unaltered truth of picture ``index``, for scoring; files are not decoded for it."""
        return ground_truth(self.pictures, index)


def ground_truth(pictures: Pictures, index: int) -> GroundTruth:
    """What is to be found in picture ``index``; a file is not decoded for it."""
    if isinstance(pictures, _KnowsTruth):
        return GroundTruth(*pictures.ground_truth(index))
    picture = pictures.picture(index)
    return GroundTruth(picture.boxes, picture.labels, picture.image.shape[1], picture.image.shape[2])


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
    return DetectionBatch(images, boxes, labels, valid, [item.index for item in items], places)


def open_pictures(
    root: str, split: str, *, images: int, seed: int, size: tuple[int, int]
) -> DigitScenes | DarknetData | VocData:
    """The pictures of one split.

    Args:
        root: ``digits``, a folder, or a ``data.yaml``. A folder is read as Pascal VOC if it (or one in it, or
            in its ``VOCdevkit``) has ``Annotations`` beside ``ImageSets`` or ``JPEGImages``, else as Darknet.
        split: the split's name.
        images, seed, size: how many scenes the built-in data makes, what keys them and their (H, W) in
            pixels; other data brings its own.

    Raises:
        UserError: nothing at ``root``, or faulty data; see :func:`read_darknet` and :func:`read_voc`.
    """
    if root == DIGITS:
        return DigitScenes(split, images, seed, size)
    return read_voc(root, split) if is_voc(root) else read_darknet(root, split)
