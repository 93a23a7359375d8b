"""The interface that all detectors implement.

A new family of detectors needs a module that implements this interface, and one line in the zoo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from rankless.models.work import convolution_outputs
from rankless.recipe import model_kinds
from rankless.structures import DetectionBatch, LossSum

CANDIDATES = 3000
"""Maximum number of candidates per image for NMS. The cost of NMS grows with the square of this number."""


class Detector(Protocol):
    """The interface of a module that predicts boxes.

    Attributes:
        head_names: prefixes of the names of all parameters that depend on the number of classes.
    """

    head_names: tuple[str, ...]

    def head_layout(self, name: str) -> tuple[int, ...]:
        """Return the layout of the rows (the first dimension) of the head parameter with the given name.

        The rows form one or more groups with the same layout, for example one group per anchor. The result is
        the number of rows before the classes, the number of rows per class and, optionally, the number of
        rows after the classes, all counted within one group.
        """

    def __call__(self, images: Tensor) -> Any:
        """Compute the raw outputs, which only ``decode`` and ``loss`` understand.

        ``images`` are floats in 0..1, (B, 3, H, W), with H and W multiples of 32. channels_last is faster.
        """
        ...

    def decode(self, raw: Any) -> tuple[Tensor, Tensor]:
        """Return boxes (B, P, 4), xyxy in input pixels, not clipped, and scores (B, P, C) in 0..1.

        Only the ``CANDIDATES`` highest-scoring boxes of each image are required.
        """
        ...

    def loss(self, raw: Any, batch: DetectionBatch) -> LossSum:
        """Compute the loss of one micro-batch as a sum and a count, both scalars.

        The images of ``batch`` are not read.
        """
        ...

    def backbone(self) -> Sequence[nn.Module]:
        """Return the modules of the backbone, which a recipe may freeze."""
        ...


@dataclass(frozen=True)
class Exports:
    """The capabilities of a detector's exported file.

    Attributes:
        any_shape: whether the file accepts any number of images of any size; otherwise, it is exported for
            one input shape.
        problem: reason why the detector cannot be exported; empty if it can.
    """

    any_shape: bool = True
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class DetectorSpec:
    """The specification of a detector: its network with a recipe's options.

    Attributes:
        size: published (height, width) of the input in pixels.
        anchors: anchors that a recipe may replace, (width, height) in pixels; empty if there are none.
    """

    model: model_kinds.ModelKeys
    size: tuple[int, int]
    anchors: tuple[tuple[float, float], ...] = ()
    exports: Exports = field(default_factory=Exports)

    def build(self, classes: int) -> nn.Module:
        """Return a :class:`Detector` on the CPU, initialized with torch's global generator."""
        raise NotImplementedError

    def activations(self, size: tuple[int, int]) -> list[int]:
        """Count the output values of each convolution for one image of (height, width) pixels."""
        return convolution_outputs(lambda: self.build(1), size)

    def self_contained(self) -> model_kinds.ModelKeys:
        """Return the recipe's ``model`` with the contents of files in place of their paths."""
        return self.model


@dataclass(frozen=True)
class Published:
    """A published detector that is available by name.

    ``classes`` is the number of classes that the detector was published for.
    """

    source: str
    classes: int = 80
