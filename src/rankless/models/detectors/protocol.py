"""The interface of detectors, which the task ``detect`` and the zoo use.

A new kind of detector needs a module that builds detectors with these methods, and one line in the zoo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from rankless.recipe import model_kinds
from rankless.structures import DetectionBatch, LossSum

CANDIDATES = 3000
"""Number of best candidates per image that reach NMS; the cost of NMS grows with its square."""


class Detector(Protocol):
    """The interface of a module that predicts boxes.

    Attributes:
        head_names: prefixes of the names of all parameters that depend on the number of classes.
    """

    head_names: tuple[str, ...]

    def head_layout(self, name: str) -> tuple[int, ...]:
        """Return the layout of the first dimension of the head's parameters.

        The dimension consists of one or more equal groups, such as one per anchor.

        Returns:
            For a group: the number of rows before the classes, the number of rows per class, and, if there
            are any, the number of rows after the classes.
        """

    def __call__(self, images: Tensor) -> Any:
        """Compute the raw outputs, which only ``decode`` and ``loss`` understand.

        Args:
            images: float in 0..1, (B, 3, H, W), H and W multiples of 32; channels_last is faster.
        """
        ...

    def decode(self, raw: Any) -> tuple[Tensor, Tensor]:
        """Return boxes (B, P, 4) xyxy in pixels of the input, not clipped, and scores in 0..1 (B, P, C).

        Candidates beyond the ``CANDIDATES`` best of their image may be left out.
        """
        ...

    def loss(self, raw: Any, batch: DetectionBatch) -> LossSum:
        """Compute the loss of one micro-batch as a sum and a count, both scalars.

        The images of ``batch`` are not read.
        """
        ...

    def backbone(self) -> Sequence[nn.Module]:
        """Return the modules of the backbone; a recipe may freeze them."""
        ...


@dataclass(frozen=True)
class Exports:
    """The capabilities of a detector's exported file.

    Attributes:
        any_shape: whether the file accepts any number of images of any size; otherwise its anchors are
            computed for one shape.
        problem: the reason why PyTorch cannot trace the detector; empty if it can.
    """

    any_shape: bool = True
    problem: str = ""


class DetectorSpec(Protocol):
    """A detector with the validated options of a recipe, before it is built.

    Attributes:
        size: published (height, width) of the input in pixels.
        anchors: (width, height) in pixels of the anchors that a recipe may replace; empty if there are none.
        exports: capabilities of the detector's exported file.
    """

    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def exports(self) -> Exports: ...

    @property
    def anchors(self) -> tuple[tuple[float, float], ...]: ...

    def build(self, classes: int) -> nn.Module:
        """Return a :class:`Detector` on the CPU, initialized from torch's global generator."""
        ...

    def activations(self, size: tuple[int, int]) -> list[int]:
        """Count the output values of each convolution for one image of (height, width) pixels."""
        ...

    def self_contained(self) -> model_kinds.ModelKeys:
        """Return the recipe's ``model`` with the text of files in place of their paths."""
        ...


@dataclass(frozen=True)
class Published:
    """A published detector that is available by name.

    Attributes:
        source: the detector's paper and origin.
        classes: number of classes that the detector was published for.
    """

    source: str
    classes: int = 80
