"""Words that several rooms share: what one image, one batch, one loss and one detection are.

Inside the program a box is ``xyxy`` in pixels, everywhere. Images are ``uint8`` RGB ``(3, H, W)`` until the
model's input is normalized on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Unreadable(NamedTuple):
    """An image that could not be read when it was needed.

    Attributes:
        index: its number in its data set.
        path: its file.
        reason: what the decoder said.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of it
    path: str
    reason: str


@dataclass(frozen=True)
class Sample:
    """One image with its ground truth, in the pixels of ``image``.

    Attributes:
        image: uint8 RGB, (3, H, W).
        boxes: float32 xyxy in pixels, (N, 4).
        labels: int64 class ids, (N,).
        reduced: one pixel of ``image`` is so many of the source's: it was made smaller while it was decoded.
        source: (H, W) of the source in pixels; None is as large as ``image``.
    """

    image: Tensor
    boxes: Tensor
    labels: Tensor
    reduced: int = 1
    source: tuple[int, int] | None = None


@dataclass(frozen=True)
class Letterbox:
    """How an image was placed on the network's input: ``input = source * stretch * scale + (left, top)``.

    Attributes:
        scale: pixels of the input per pixel of the source.
        left, top: where the source's corner lies on the input, in pixels.
        height, width: the source's size in pixels.
        stretch: factors on x and y before all else; both 1 where the aspect is kept.
    """

    scale: float
    left: float
    top: float
    height: int
    width: int
    stretch: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True)
class DetectionItem:
    """One network input with its targets, before collation.

    Attributes:
        image: uint8 RGB of the network's size, (3, H, W).
        boxes: float32 xyxy in pixels of the network input, (N, 4).
        labels: int64, (N,).
        index: the image's number in its data set.
        letterbox: how the source image lies on the input; of no meaning for a training image that is
            mirrored or made of several.
        unreadable: what could not be read for it: of a training image others stand in its place, one that
            is to be scored is gray.
    """

    image: Tensor
    boxes: Tensor
    labels: Tensor
    index: int
    letterbox: Letterbox
    unreadable: tuple[Unreadable, ...] = ()


@dataclass
class DetectionBatch:
    """One micro-batch. Targets are padded to the longest list, so shapes are known without the device.

    Attributes:
        images: uint8, (B, 3, H, W).
        boxes: float32 xyxy in pixels of the input, (B, T, 4); zeros where ``valid`` is false.
        labels: int64, (B, T); zeros where ``valid`` is false.
        valid: bool, (B, T).
        indices: the images' numbers, length B.
        letterboxes: how each source lies on its input, length B.
        unreadable: what could not be read for its items, in their order.
    """

    images: Tensor
    boxes: Tensor
    labels: Tensor
    valid: Tensor
    indices: list[int]
    letterboxes: list[Letterbox]
    unreadable: list[Unreadable] = field(default_factory=list)

    def to(self, device: torch.device) -> DetectionBatch:
        """A copy with its tensors on ``device``, without waiting for the transfer."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> DetectionBatch:
        """A copy in page-locked memory (called by the data loader when the device is a GPU)."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> DetectionBatch:
        """A copy with every tensor changed."""
        return replace(
            self,
            images=change(self.images),
            boxes=change(self.boxes),
            labels=change(self.labels),
            valid=change(self.valid),
        )


@dataclass(frozen=True)
class ClassificationItem:
    """One network input with its target, before collation.

    Attributes:
        image: uint8 RGB of the network's size, (3, H, W).
        target: float32 share of each class, (C,); the sum is 1, and one of them unless images were mixed.
        index: the image's number in its data set.
        unreadable: as of a :class:`DetectionItem`.
    """

    image: Tensor
    target: Tensor
    index: int
    unreadable: tuple[Unreadable, ...] = ()


@dataclass
class ClassificationBatch:
    """One micro-batch of images, each of one class or of a mixture.

    Attributes:
        images: uint8, (B, 3, H, W).
        targets: float32 share of each class, (B, C).
        indices: the images' numbers, length B.
        unreadable: what could not be read for its items, in their order.
    """

    images: Tensor
    targets: Tensor
    indices: list[int]
    unreadable: list[Unreadable] = field(default_factory=list)

    def to(self, device: torch.device) -> ClassificationBatch:
        """A copy with its tensors on ``device``, without waiting for the transfer."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> ClassificationBatch:
        """A copy in page-locked memory (called by the data loader when the device is a GPU)."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> ClassificationBatch:
        """A copy with every tensor changed."""
        return replace(self, images=change(self.images), targets=change(self.targets))


@dataclass(frozen=True)
class LossSum:
    """A loss that is not yet divided.

    The sum over the micro-batch's images and the count to divide by are added over all micro-batches of a
    step; the division happens once, by the global count.

    Attributes:
        sum: scalar with a gradient.
        count: scalar without one: images, positives, pixels, whatever the task divides by.
        parts: named sums for the journal, scalars without gradients.
    """

    sum: Tensor
    count: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Detections:
    """What was found in one image, in pixels of the source image, best first.

    Attributes:
        index: the image's number in its data set (or in the list of sources).
        boxes: float32 xyxy, (K, 4), on the CPU.
        scores: float32 in 0..1, (K,).
        labels: int64, (K,).
        unreadable: the image could not be read, so that this is no answer to be scored.
    """

    index: int
    boxes: Tensor
    scores: Tensor
    labels: Tensor
    unreadable: bool = False


@dataclass(frozen=True)
class Classification:
    """What one image was taken for.

    Attributes:
        index: the image's number in its data set (or in the list of sources).
        log_probabilities: float32 natural logarithms, (C,), on the CPU.
        unreadable: the image could not be read, so that this is no answer to be scored.
    """

    index: int
    log_probabilities: Tensor
    unreadable: bool = False


Scores = dict[str, Any]
"""What a metric says: names to numbers, JSON-ready."""
