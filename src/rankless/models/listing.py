"""Every model by its name with its size and its work, measured on networks without memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rankless import recipe
from rankless.models.classifiers import CLASSIFIERS
from rankless.models.darknet import COCO_CLASSES
from rankless.models.yolo import DetectionModel
from rankless.models.zoo import MODELS, network


@dataclass(frozen=True)
class Listed:
    """One model, as published.

    Attributes:
        name: what ``model.name`` takes.
        task: what it is for.
        classes: that it tells apart here.
        size: (height, width) of its input in pixels.
        parameters: that are learnt.
        gflops: 10⁹ operations of one picture, two for each multiplication with its addition.
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
        described = network(recipe.Model(name=name), COCO_CLASSES)
        size = described.size
        parameters, gflops = measured(partial(DetectionModel, described), size)
        yield Listed(name, "detect", COCO_CLASSES, size, parameters, gflops, variant.source)
    for name, known in CLASSIFIERS.items():
        size = (known.side, known.side)
        source = known.source.partition(", arXiv")[0]
        yield Listed(name, "classify", known.classes, size, known.parameters, known.gflops, source)


def measured(build: Callable[[], nn.Module], size: tuple[int, int]) -> tuple[int, float]:
    """Parameters, and GFLOPs of one picture of ``size`` (height, width); nothing is computed."""
    with torch.device("meta"):
        model = build().eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.empty(1, 3, *size))
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops() / 1e9
