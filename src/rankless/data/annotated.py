"""Annotated pictures as a source of examples: what the flat arrays say, with the pixels beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.data import pictures
from rankless.data.annotations import Annotations
from rankless.types import Picture


@dataclass(frozen=True)
class BoxedPictures:
    """Pictures with boxes; a :class:`rankless.data.detection.Pictures`.

    Attributes:
        annotations: of one split.
    """

    annotations: Annotations

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
        """Height and width of each picture in pixels; 0, 0 where it cannot be read; (N, 2)."""
        return self.annotations.sizes

    def __len__(self) -> int:
        return len(self.annotations)

    def source(self, index: int) -> str:
        """The file of picture ``index``."""
        return self.annotations.path(index)

    def picture(self, index: int) -> Picture:
        """Picture ``index`` decoded, with the boxes to train on: neither difficult nor crowds.

        Raises:
            UnreadablePicture: the file is missing or damaged.
        """
        image = pictures.read(self.annotations.path(index))
        rows = self.annotations.rows(index)
        plain = self.annotations.flags[rows] == 0
        boxes = torch.from_numpy(self.annotations.boxes[rows][plain])
        labels = torch.from_numpy(self.annotations.labels[rows][plain].astype("int64"))
        return Picture(image, boxes, labels)

    def ground_truth(self, index: int) -> tuple[Tensor, Tensor, int, int, Tensor, Tensor]:
        """Boxes xyxy in pixels, labels, height and width of picture ``index``, the boxes' flags and areas."""
        rows = self.annotations.rows(index)
        height, width = self.annotations.sizes[index].tolist()
        boxes = torch.tensor(self.annotations.boxes[rows])
        labels = torch.tensor(self.annotations.labels[rows].astype("int64"))
        flags = torch.tensor(self.annotations.flags[rows])
        areas = torch.tensor(self.annotations.areas[rows])
        return boxes, labels, height, width, flags, areas
