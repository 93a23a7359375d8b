"""Every model by its name with its size and its work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from rankless.models.classifiers.catalog import CLASSIFIERS
from rankless.models.darknet.architectures import COCO_CLASSES
from rankless.models.detectors.convolutional import DetectionModel
from rankless.models.work import parameters_and_gflops
from rankless.models.zoo import MODELS, network
from rankless.recipe import schema


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


def listed() -> Iterator[Listed]:
    """Detectors, then classifiers."""
    for name, variant in MODELS.items():
        described = network(schema.Model(name=name), COCO_CLASSES)
        size = described.size
        parameters, gflops = parameters_and_gflops(partial(DetectionModel, described), size)
        yield Listed(name, "detect", COCO_CLASSES, size, parameters, gflops, variant.source)
    for name, known in CLASSIFIERS.items():
        size = (known.side, known.side)
        source = known.source.partition(", arXiv")[0]
        yield Listed(name, "classify", known.classes, size, known.parameters, known.gflops, source)
