"""Every model by its name with its size and its work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from rankless.models import zoo
from rankless.models.classifiers.catalog import CLASSIFIERS
from rankless.models.detectors.protocol import DetectorSpec
from rankless.models.work import parameters_and_gflops
from rankless.models.zoo import MODELS
from rankless.recipe import kinds


@dataclass(frozen=True)
class Listed:
    """One model, as published.

    Attributes:
        name: what ``model.name`` takes.
        task: what it is for.
        classes: that it tells apart here.
        size: (height, width) of its input in pixels.
        parameters: that are learnt.
        gflops: 10⁹ operations of one image, two for each multiplication with its addition.
        source: where it comes from.
    """

    name: str
    task: str
    classes: int
    size: tuple[int, int]
    parameters: int
    gflops: float
    source: str


class _Whole(nn.Module):
    """A detector from pixels to boxes: some compute in decoding, too."""

    def __init__(self, spec: DetectorSpec, classes: int) -> None:
        super().__init__()
        self.detector: Any = spec.build(classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        boxes, scores = self.detector.decode(self.detector(images))
        return boxes, scores


def listed_detector(name: str) -> Listed:
    """Return a detector as published."""
    spec, published = zoo.spec(kinds.Model(name=name)), MODELS[name]
    parameters, gflops = parameters_and_gflops(partial(_Whole, spec, published.classes), spec.size)
    return Listed(name, "detect", published.classes, spec.size, parameters, gflops, published.source)


def listed() -> Iterator[Listed]:
    """Detectors, then classifiers."""
    yield from map(listed_detector, MODELS)
    for name, known in CLASSIFIERS.items():
        size = (known.side, known.side)
        source = known.source.partition(", arXiv")[0]
        yield Listed(name, "classify", known.classes, size, known.parameters, known.gflops, source)
