"""List all models with their parameters and computational cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from rankless.models import zoo
from rankless.models.classifiers.catalog import CLASSIFIERS
from rankless.models.detectors.protocol import DetectorSpec
from rankless.models.detectors.transformers import TransformersModel
from rankless.models.work import parameters_and_gflops
from rankless.models.zoo import MODELS
from rankless.recipe import model_kinds
from rankless.task_kinds import KINDS


@dataclass(frozen=True)
class Listed:
    """An entry in the list of models.

    Attributes:
        classes: number of classes that the model was published for.
        size: published (height, width) of the input in pixels.
        gflops: billions of operations per image; a multiply-accumulate counts as two.
    """

    name: str
    task: str
    classes: int
    size: tuple[int, int]
    parameters: int
    gflops: float
    source: str


class _Whole(nn.Module):
    def __init__(self, spec: DetectorSpec, classes: int) -> None:
        super().__init__()
        self.detector: Any = spec.build(classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        boxes, scores = self.detector.decode(self.detector(images))
        return boxes, scores


def listed_detector(name: str, task: str) -> Listed:
    """Return the list entry of a published detector."""
    spec, published = zoo.spec(model_kinds.Model(name=name)), MODELS[name]
    if isinstance(published, TransformersModel):
        parameters, gflops = published.parameters, published.gflops
    else:
        parameters, gflops = parameters_and_gflops(partial(_Whole, spec, published.classes), spec.size)
    return Listed(name, task, published.classes, spec.size, parameters, gflops, published.source)


def listed_classifier(name: str, task: str) -> Listed:
    """Return the list entry of a classifier."""
    known = CLASSIFIERS[name]
    size, source = (known.side, known.side), known.source.partition(", arXiv")[0]
    return Listed(name, task, known.classes, size, known.parameters, known.gflops, source)


def listed() -> Iterator[Listed]:
    """Return an iterator over the entries of all detectors, then of all classifiers."""
    return (kind.listed(name, kind.name) for kind in KINDS for name in kind.names.load())
