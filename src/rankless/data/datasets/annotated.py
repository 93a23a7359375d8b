"""Opened data sets: images with boxes, and images with one class each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.data.datasets.class_matching import LEFT_OUT, ClassMatch, Pairs, match_classes
from rankless.data.images.image_cache import open_images
from rankless.data.images.image_file import Decoded, Shown
from rankless.data.images.sources import Cache, FileImages, ImageSource, Readable
from rankless.data.index.annotation_cache import forget
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.data.index.byte_ranges import file_of, original
from rankless.errors import UserError, listed
from rankless.files.remote import is_remote
from rankless.structures import IGNORED_LABEL, Sample


@dataclass(frozen=True)
class GroundTruth:
    """The annotated objects of one image.

    Attributes:
        boxes: float32 xyxy in pixels, (N, 4).
        labels: class of each box, or :data:`~rankless.structures.IGNORED_LABEL`, int64, (N,).
        height, width: size of the image in pixels.
        flags: bits :data:`~rankless.data.index.annotations.DIFFICULT` and ``CROWD`` of each box, (N,); None
            if no box has a flag. Scores ignore boxes with flags.
        areas: area of each object in pixels, (N,), NaN if only the box is annotated; None if unknown.
    """

    boxes: Tensor
    labels: Tensor
    height: int
    width: int
    flags: Tensor | None = None
    areas: Tensor | None = None

    @property
    def difficult(self) -> Tensor | None:
        """Whether each box is marked difficult, bool (N,); None if there are no flags."""
        return None if self.flags is None else (self.flags.to(torch.uint8) & DIFFICULT) > 0

    @property
    def crowd(self) -> Tensor | None:
        """Whether each box is marked as a crowd, bool (N,); None if there are no flags."""
        return None if self.flags is None else (self.flags.to(torch.uint8) & CROWD) > 0


class DetectionImages(ImageSource[Sample]):
    """Images with boxes. ``read(index)`` returns a :class:`~rankless.structures.Sample`."""

    def ground_truth(self, index: int) -> GroundTruth:
        """Return the annotated objects of an image. By default, this reads the image."""
        sample = self.read(index)
        return GroundTruth(sample.boxes, sample.labels, sample.image.shape[1], sample.image.shape[2])

    def sizes(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """Return the heights and widths, (B, 2), of the images at ``indices``; 0, 0 if unreadable."""
        truths = [self.ground_truth(index) for index in indices]
        return np.array([[truth.height, truth.width] for truth in truths], dtype=np.int64)


class _Annotated:
    def __init__(self, annotations: Annotations, images: Readable[Decoded] | None = None) -> None:
        self.annotations = annotations
        self.images: Readable[Decoded] = images or FileImages(annotations)
        self.class_names, self.notes = annotations.class_names, annotations.notes

    def __len__(self) -> int:
        return len(self.annotations)

    def source(self, index: int) -> str:
        return self.annotations.path(index)

    def digest(self) -> str:
        return self.annotations.digest()

    def files(self) -> list[str]:
        files = dict.fromkeys(map(file_of, self.annotations.paths()))
        return [file for file in dict.fromkeys(map(original, files)) if not is_remote(file)]

    def opened(self, shown: Shown, cache: Cache) -> tuple[Self, tuple[str, ...]]:
        made = copy(self)
        made.images, notes = open_images(self.annotations, shown, cache)
        return made, notes


class BoxedImages(_Annotated, DetectionImages):
    """Images with boxes, stored in files."""

    def read(self, index: int) -> Sample:
        """Return an image with its boxes. Difficult boxes and crowds have the label ``IGNORED_LABEL``."""
        decoded = self.images.read(index)
        check_size(self.annotations, index, decoded.source)
        rows = self.annotations.rows(index)
        boxes = torch.from_numpy(self.annotations.boxes[rows] / np.float32(decoded.reduced))
        labels = np.where(self.annotations.flags[rows] == 0, self.annotations.labels[rows], IGNORED_LABEL)
        classes = torch.from_numpy(labels.astype("int64"))
        return Sample(decoded.image, boxes, classes, decoded.reduced, decoded.source)

    def ground_truth(self, index: int) -> GroundTruth:
        known, rows = self.annotations, self.annotations.rows(index)
        height, width = known.sizes[index].tolist()
        boxes, labels = torch.tensor(known.boxes[rows]), torch.tensor(known.labels[rows].astype("int64"))
        flags, areas = torch.tensor(known.flags[rows]), torch.tensor(known.areas[rows])
        return GroundTruth(boxes, labels, height, width, flags, areas)

    def sizes(self, indices: Sequence[int]) -> NDArray[np.int64]:
        sizes: NDArray[np.int64] = self.annotations.sizes[np.asarray(indices)].astype(np.int64)
        return sizes


class MatchedImages(DetectionImages):
    """Images whose labels are converted to the labels of a model."""

    def __init__(self, images: DetectionImages, match: ClassMatch, class_names: Sequence[str]) -> None:
        self.images, self.class_names = images, tuple(class_names)
        self.notes = (*images.notes, *match.notes)
        # The last entry is that of the label -1, IGNORED_LABEL.
        self._labels = torch.tensor([*match.labels, IGNORED_LABEL], dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> Sample:
        sample = self.images.read(index)
        labels, stays = self._of_model(sample.labels)
        return replace(sample, boxes=sample.boxes[stays], labels=labels)

    def ground_truth(self, index: int) -> GroundTruth:
        truth = self.images.ground_truth(index)
        labels, stays = self._of_model(truth.labels)
        flags, areas = (None if one is None else one[stays] for one in (truth.flags, truth.areas))
        return replace(truth, boxes=truth.boxes[stays], labels=labels, flags=flags, areas=areas)

    def _of_model(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's labels for the boxes to keep, and a mask, (N,), of these boxes."""
        labels = self._labels[labels]
        stays = labels != LEFT_OUT
        return labels[stays], stays

    def sizes(self, indices: Sequence[int]) -> NDArray[np.int64]:
        return self.images.sizes(indices)

    def source(self, index: int) -> str:
        return self.images.source(index)

    def digest(self) -> str | None:
        return self.images.digest()

    def files(self) -> list[str]:
        return self.images.files()

    def opened(self, shown: Shown, cache: Cache) -> tuple[MatchedImages, tuple[str, ...]]:
        made = copy(self)
        made.images, notes = self.images.opened(shown, cache)
        return made, notes


class ClassificationImages(ImageSource[Tensor]):
    """Images with one class each. ``read(index)`` returns uint8 RGB, (3, H, W)."""

    @abstractmethod
    def label(self, index: int) -> int:
        """Return the class of an image."""


class ClassifiedImages(_Annotated, ClassificationImages):
    """Images with one class each, stored in files.

    Args:
        annotations: annotations of one split.
        class_names: class names of the model. Default: the class names of the data.
        where: description of the data for messages.
        given: pairs (name in the data, name in the model) for classes whose names differ.
    """

    def __init__(
        self, annotations: Annotations, class_names: Sequence[str] | None, where: str, given: Pairs = ()
    ) -> None:
        super().__init__(annotations)
        known = annotations.class_names
        if class_names is None and len(known) < 2:
            raise UserError(
                f"{where}: only one class has images ({listed(known)}); expected at least two; create a "
                "folder for each class, or use task=detect if the images have boxes"
            )
        self.class_names = known if class_names is None else tuple(class_names)
        labels = {name: label for label, name in enumerate(self.class_names)}
        used = [known[label] for label in np.unique(annotations.labels)]
        if given or any(name not in labels for name in used):
            match = match_classes(used, self.class_names, given, where, may_leave_out=False)
            labels |= zip(used, match.labels, strict=True)
            self.notes = (*self.notes, *match.notes)
        # A lookup table, because processes would not share an array of new labels.
        self._labels = tuple(labels.get(name, -1) for name in known)
        seen = {self.class_names[labels[name]] for name in used}
        if missing := [name for name in self.class_names if name not in seen]:
            have = "has" if len(missing) == 1 else "have"
            some = f"{len(missing):,} of {len(self.class_names):,} classes"
            self.notes = (*self.notes, f"{some} {have} no images: {listed(missing)}")

    def read(self, index: int) -> Tensor:
        return self.images.read(index).image

    def label(self, index: int) -> int:
        return self._labels[int(self.annotations.labels[index])]


def check_size(annotations: Annotations, index: int, size: tuple[int, int]) -> None:
    """Raise an error if ``size``, the (H, W) of a decoded image, differs from the annotated size."""
    height, width = annotations.sizes[index].tolist()
    if size == (height, width):
        return
    forget(annotations)
    was = f"{width} × {height}" if height else "unreadable"
    raise UserError(
        f"{annotations.path(index)}: the image changed after the data was read: it was {was} and is now "
        f"{size[1]} × {size[0]}; start again to read the new data"
    )
