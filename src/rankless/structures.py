"""Data types that several packages use, such as samples, batches, losses and detections.

Boxes are ``xyxy`` in pixels everywhere in the package. Images are ``uint8`` RGB ``(3, H, W)`` until the model
input is normalized on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

IGNORED_LABEL = -1
"""The label of a box that marks a region to ignore, which is neither an object nor background."""


class Unreadable(NamedTuple):
    """An image that could not be read: its index in its data set, its file, and the decoder's message."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    path: str
    reason: str


def stacked(images: Sequence[Tensor]) -> Tensor:
    """Stack images, uint8 (3, H, W), into a batch (B, 3, H, W) in the memory format of the first image.

    Images that were only decoded and resized are channels_last, like the network's input. Converting them to
    another format and back would take longer than resizing.
    """
    if images[0].is_contiguous():
        return torch.stack(list(images))
    return torch.stack([image.movedim(0, -1) for image in images]).movedim(-1, 1)


def network_input(images: Tensor) -> Tensor:
    """Convert images, uint8 (B, 3, H, W), to network input: float32 in 0..1, channels_last."""
    return images.contiguous(memory_format=torch.channels_last).float().div_(255)


@dataclass(frozen=True)
class Sample:
    """An image with its ground truth, in pixels of ``image``.

    Attributes:
        image: uint8 RGB, (3, H, W).
        boxes: float32 xyxy in pixels, (N, 4).
        labels: int64 class ids, or :data:`IGNORED_LABEL`, (N,).
        reduced: pixels of the source per pixel of ``image``; greater than 1 if it was decoded at a reduced
            size.
        source: (H, W) of the source in pixels, or None if ``image`` has the same size.
    """

    image: Tensor
    boxes: Tensor
    labels: Tensor
    reduced: int = 1
    source: tuple[int, int] | None = None


@dataclass(frozen=True)
class Letterbox:
    """The placement of an image in the network's input: ``input = source * stretch * scale + (left, top)``.

    Attributes:
        scale: pixels of the input per pixel of the source.
        left, top: position of the source's corner on the input, in pixels.
        height, width: size of the source in pixels.
        stretch: factors for x and y, which are applied first; both are 1 if the aspect ratio is preserved.
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
        image: uint8 RGB, (3, H, W), in the network's input size.
        boxes: float32 xyxy in pixels of the input, (N, 4).
        labels: int64 class ids, or :data:`IGNORED_LABEL`, (N,).
        index: index of the image in its data set.
        letterbox: placement of the source on the input; meaningless for a training image that was mirrored or
            composed of several images.
        unreadable: images that could not be read for this item. Training replaces them with other images, and
            evaluation with a gray one.
    """

    image: Tensor
    boxes: Tensor
    labels: Tensor
    index: int
    letterbox: Letterbox
    unreadable: tuple[Unreadable, ...] = ()


class _Batch:
    """Base class of batches. Every tensor and list except ``unreadable`` has one entry per image.

    ``indices`` are the images' indices in their data set. ``unreadable`` are the images that could not be
    read for the items, in their order.
    """

    indices: list[int]
    unreadable: list[Unreadable]

    def to(self, device: torch.device) -> Self:
        """Return a copy with its tensors on ``device``, without waiting for the transfer."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Return a copy in page-locked memory. The data loader calls this if the device is a GPU."""
        return self._each(Tensor.pin_memory)

    def readable(self) -> Self | None:
        """Return the batch without its unreadable images, or None if all images are unreadable."""
        missing = {one.index for one in self.unreadable}
        rows = [row for row, index in enumerate(self.indices) if index not in missing]
        if not rows:
            return None
        lists = {name: value for name, value in self._values(list) if name != "unreadable"}
        chosen = {name: [value[row] for row in rows] for name, value in lists.items()}
        return self._each(lambda tensor: tensor[rows], unreadable=[], **chosen)

    def _values(self, kind: type) -> Iterator[tuple[str, Any]]:
        batch: Any = self
        values = ((each.name, getattr(batch, each.name)) for each in fields(batch))
        return ((name, value) for name, value in values if isinstance(value, kind))

    def _each(self, change: Callable[[Tensor], Tensor], **lists: list[Any]) -> Self:
        """Return a copy with ``change`` applied to every tensor and with the given lists."""
        batch: Any = self
        made: Self = replace(batch, **{name: change(value) for name, value in self._values(Tensor)}, **lists)
        return made


@dataclass
class DetectionBatch(_Batch):
    """One micro-batch for detection. Targets are padded, so that the CPU knows all shapes.

    Attributes:
        images: uint8, (B, 3, H, W).
        boxes: float32 xyxy in pixels of the input, (B, N, 4).
        labels: int64 class ids, (B, N).
        valid: bool, (B, N), False for padding.
        letterboxes: placements of the images on the input.
        ignored: regions to ignore, float32 xyxy in pixels of the input, (B, M, 4), padded with zeros; None if
            there are none.
    """

    images: Tensor
    boxes: Tensor
    labels: Tensor
    valid: Tensor
    indices: list[int]
    letterboxes: list[Letterbox]
    unreadable: list[Unreadable] = field(default_factory=list)
    ignored: Tensor | None = None

    @cached_property
    def network_input(self) -> Tensor:
        """The images as network input (see :func:`network_input`), computed on first use."""
        return network_input(self.images)


@dataclass(frozen=True)
class ClassificationItem:
    """One network input with its target, before collation.

    Attributes:
        image: uint8 RGB, (3, H, W), in the network's input size.
        target: float32 fraction of each class, (C,), with sum 1; one-hot unless images are mixed.
        index, unreadable: as in :class:`DetectionItem`.
    """

    image: Tensor
    target: Tensor
    index: int
    unreadable: tuple[Unreadable, ...] = ()


@dataclass
class ClassificationBatch(_Batch):
    """One micro-batch for classification.

    Attributes:
        images: uint8, (B, 3, H, W).
        targets: float32 fraction of each class, (B, C).
    """

    images: Tensor
    targets: Tensor
    indices: list[int]
    unreadable: list[Unreadable] = field(default_factory=list)


@dataclass(frozen=True)
class LossSum:
    """A loss as a sum and a count, each summed over all micro-batches of a step.

    The loss of the step is the total sum divided by the total count.
    """

    sum: Tensor
    count: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)

    if TYPE_CHECKING:

        def __init__(self, sum: Tensor, count: Tensor | float, parts: Mapping[str, Tensor] = ...) -> None: ...

    def __post_init__(self) -> None:
        """Convert the count to a tensor if it is a Python number."""
        given: Any = self.count
        if isinstance(self.sum, Tensor) and type(given) in (int, float):
            count = torch.full((), given, dtype=torch.float32, device=self.sum.device)
            object.__setattr__(self, "count", count)


@dataclass(frozen=True)
class Detections:
    """The detections in one image, best first, in pixels of the source image.

    Attributes:
        index: index of the image in its data set or in the list of sources.
        boxes: float32 xyxy, (K, 4), on the CPU.
        scores: float32 in 0..1, (K,).
        labels: int64 class ids, (K,).
        unreadable: whether the image could not be read. Such an image is not scored.
    """

    index: int
    boxes: Tensor
    scores: Tensor
    labels: Tensor
    unreadable: bool = False


@dataclass(frozen=True)
class Classification:
    """A classifier's log probabilities for one image, float32 (C,), on the CPU.

    ``index`` and ``unreadable`` are as in :class:`Detections`.
    """

    index: int
    log_probabilities: Tensor
    unreadable: bool = False


Scores = dict[str, Any]
"""The result of a metric: a mapping from names to values that JSON can represent."""
