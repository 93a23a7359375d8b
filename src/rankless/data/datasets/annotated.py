"""Annotated images as a source of examples: what the flat arrays say, with the pixels beside it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.data.images import image_file
from rankless.data.images.image_cache import ImageCache, open_cache
from rankless.data.images.image_file import Decoded, Shown
from rankless.data.index.annotation_cache import forget
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import open_source
from rankless.errors import UserError, listed
from rankless.structures import Sample


@dataclass(frozen=True)
class BoxedImages:
    """Images with boxes; a :class:`rankless.data.datasets.detection.Images`.

    Attributes:
        annotations: of one split.
        cache: keeps decoded images; None decodes them each time.
    """

    annotations: Annotations
    cache: ImageCache | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """A label is a position in this list."""
        return self.annotations.class_names

    @property
    def notes(self) -> tuple[str, ...]:
        """How the data was read and what was wrong."""
        return self.annotations.notes

    @property
    def sizes(self) -> NDArray[np.int32]:
        """Height and width of each image in pixels; 0, 0 where it cannot be read; (N, 2)."""
        return self.annotations.sizes

    def __len__(self) -> int:
        return len(self.annotations)

    def source(self, index: int) -> str:
        """The file of image ``index``."""
        return self.annotations.path(index)

    def sample(self, index: int) -> Sample:
        """Image ``index`` decoded, every pixel of it, with the boxes to train on.

        Raises:
            UnreadableImage: the file is missing or damaged.
            UserError: it is of another size than when the data was read.
        """
        return self.shown_sample(index, None)

    def shown_sample(self, index: int, shown: Shown | None) -> Sample:
        """Image ``index``, reduced as ``shown`` allows, with the boxes to train on.

        They are neither difficult nor crowds, and in pixels of the reduced image.

        Raises:
            UnreadableImage, UserError: see :meth:`decoded`.
        """
        decoded = self.decoded(index, shown)
        rows = self.annotations.rows(index)
        plain = self.annotations.flags[rows] == 0
        boxes = torch.from_numpy(self.annotations.boxes[rows][plain] / np.float32(decoded.reduced))
        labels = torch.from_numpy(self.annotations.labels[rows][plain].astype("int64"))
        return Sample(decoded.image, boxes, labels, decoded.reduced, decoded.source)

    def decoded(self, index: int, shown: Shown | None) -> Decoded:
        """Image ``index`` alone, from the cache if there is one.

        Raises:
            UnreadableImage: the file is missing or damaged.
            UserError: it is of another size than when the data was read.
        """
        found = _decoded(self.annotations, self.cache, index, shown)
        check_size(self.annotations, index, found.source)
        return found

    def kept(self, kind: Literal["none", "ram", "disk"], shown: Shown) -> tuple[BoxedImages, tuple[str, ...]]:
        """The same images with the cache that ``data.cache`` asks for, and what to say of it.

        Raises:
            UserError: the disk has not the room for it.
        """
        cache, notes = open_cache(kind, self.annotations, shown)
        return replace(self, cache=cache), notes

    def ground_truth(self, index: int) -> tuple[Tensor, Tensor, int, int, Tensor, Tensor]:
        """Boxes xyxy in pixels, labels, height and width of image ``index``, the boxes' flags and areas."""
        rows = self.annotations.rows(index)
        height, width = self.annotations.sizes[index].tolist()
        boxes = torch.tensor(self.annotations.boxes[rows])
        labels = torch.tensor(self.annotations.labels[rows].astype("int64"))
        flags = torch.tensor(self.annotations.flags[rows])
        areas = torch.tensor(self.annotations.areas[rows])
        return boxes, labels, height, width, flags, areas


class ClassifiedImages:
    """Images of one class each; a :class:`rankless.data.datasets.classification.Images`.

    Args:
        annotations: of one split.
        class_names: of the model; None takes the data's own.
        where: the data, for messages.

    Attributes:
        class_names: a label is a position in this list.
        notes: how the data was read, what was wrong, and which classes have no images.

    Raises:
        UserError: a class that ``class_names`` does not have, or none given and only one in the data.
    """

    def __init__(self, annotations: Annotations, class_names: Sequence[str] | None, where: str) -> None:
        own = annotations.class_names
        if class_names is None and len(own) < 2:
            raise UserError(
                f"{where}: only one class has images ({listed(own)}), expected two or more; "
                "make a folder per class (images with boxes are for task: detect)."
            )
        self.annotations = annotations
        self.cache: ImageCache | None = None
        self.class_names = own if class_names is None else tuple(class_names)
        places = {name: number for number, name in enumerate(self.class_names)}
        seen = [own[label] for label in np.unique(annotations.labels)]
        if strangers := [name for name in seen if name not in places]:
            raise UserError(
                f"{where} has classes that the model does not have: {listed(strangers)}; expected "
                f"{listed(self.class_names)}. Give the splits the same classes, or train anew."
            )
        # By name, and not a new array: the labels stay where all processes share them.
        self._numbers = tuple(places.get(name, -1) for name in own)
        missing = [name for name in self.class_names if name not in set(seen)]
        count = f"{len(missing)} of {len(self.class_names)} classes have no images: {listed(missing)}"
        self.notes = (*annotations.notes, *([count] if missing else []))

    def __len__(self) -> int:
        return len(self.annotations)

    def source(self, index: int) -> str:
        """The file of image ``index``."""
        return self.annotations.path(index)

    def image(self, index: int) -> Tensor:
        """Image ``index``, every pixel of it, uint8 RGB (3, H, W).

        Raises:
            UnreadableImage: the file is missing or damaged.
        """
        return _decoded(self.annotations, None, index, None).image

    def shown_image(self, index: int, shown: Shown) -> Tensor:
        """Image ``index``, reduced as ``shown`` allows, from the cache if there is one; uint8 (3, H, W).

        Raises:
            UnreadableImage: the file is missing or damaged.
        """
        return _decoded(self.annotations, self.cache, index, shown).image

    def kept(
        self, kind: Literal["none", "ram", "disk"], shown: Shown
    ) -> tuple[ClassifiedImages, tuple[str, ...]]:
        """The same images with the cache that ``data.cache`` asks for, and what to say of it.

        Raises:
            UserError: the disk has not the room for it.
        """
        made = copy.copy(self)
        made.cache, notes = open_cache(kind, self.annotations, shown)
        return made, notes

    def label(self, index: int) -> int:
        """The class of image ``index``."""
        return self._numbers[int(self.annotations.labels[index])]


def _decoded(annotations: Annotations, cache: ImageCache | None, index: int, shown: Shown | None) -> Decoded:
    def decode() -> Decoded:
        return image_file.read_for(open_source(annotations, index), shown, name=annotations.path(index))

    if cache is None or shown is None:
        return decode()
    return cache.read(annotations, index, shown, decode)


def check_size(annotations: Annotations, index: int, size: tuple[int, int]) -> None:
    """See that a decoded image of (H, W) is the one whose size was read; boxes are no good for another.

    Raises:
        UserError: it is not.
    """
    height, width = annotations.sizes[index].tolist()
    if size == (height, width):
        return
    forget(annotations)
    was = f"was {width} × {height}" if height else "could not be read"
    raise UserError(
        f"The image {annotations.path(index)} is {size[1]} × {size[0]} pixels, but {was} when the data was "
        "read: it was replaced since. Start again, and the data is read anew."
    )
