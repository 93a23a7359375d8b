"""Prepare a model for export: its inputs and outputs, the shapes it accepts, and the metadata of the file.

The input of an exported model is ``images``, float32 RGB in 0..1 (B, 3, H, W). The outputs are boxes and
scores, or probabilities. Normalization and decoding are included and computed in float32, regardless of the
network's precision.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.models.detectors.protocol import CANDIDATES, Exports
from rankless.models.exported.metadata import Facts
from rankless.models.weights_files import weights
from rankless.recipe import load
from rankless.recipe.schema import Evaluate, Recipe
from rankless.runs.trained_weights import trained_weights_of
from rankless.task_kinds import kind_of
from rankless.tasks import open_task, trained
from rankless.tasks.custom import own_code, refuse_unasked, with_absolute_names


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the progress, warnings and advice of PyTorch's exporters inside a ``with`` block."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


class PortableDetector(nn.Module):
    """A detector that also decodes its outputs. With ``half``, the network computes in float16."""

    def __init__(self, detector: nn.Module, task: Any = None, *, half: bool = False) -> None:
        super().__init__()
        if "backbone" in detector._modules:
            # PyTorch's exporters look up modules as attributes, and would find the method of the same name.
            found = property(lambda self: self._modules["backbone"])
            detector.__class__ = type(type(detector).__name__, (type(detector),), {"backbone": found})
        self.detector = detector.half() if half else detector
        self.half_precision = half

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute boxes (B, P, 4), xyxy in input pixels, and scores (B, P, C) of images (B, 3, H, W)."""
        detector = cast(Any, self.detector)
        boxes, scores = detector.decode(detector(images.half() if self.half_precision else images))
        return boxes, scores


class PortableClassifier(nn.Module):
    """A classifier that also normalizes its input and applies softmax to its output.

    ``task.mean`` and ``task.std`` have one value per channel. With ``half``, the network computes in float16.
    """

    def __init__(self, classifier: nn.Module, task: Any, *, half: bool = False) -> None:
        super().__init__()
        self.classifier = classifier.half() if half else classifier
        self.half_precision = half
        self.register_buffer("mean", torch.tensor(task.mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(task.std).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Compute the class probabilities (B, C) of images (B, 3, H, W) in 0..1."""
        normalized = (images - cast(Tensor, self.mean)) / cast(Tensor, self.std)
        logits = self.classifier(normalized.half() if self.half_precision else normalized)
        probabilities: Tensor = logits.float().softmax(1)
        return probabilities


class WithNms(nn.Module):
    """A detector followed by NMS, for PyTorch's formats. The results equal those of ``rankless predict``.

    Only candidates with a score above ``confidence`` are kept.
    """

    def __init__(self, detector: nn.Module, settings: Evaluate, confidence: float) -> None:
        super().__init__()
        self.detector, self.iou, self.confidence = detector, settings.iou, confidence
        self.class_agnostic = settings.class_agnostic
        importlib.import_module("torchvision")  # registers its NMS for PyTorch's exporters

    def forward(self, images: Tensor) -> Tensor:
        """Return detections (N, 7): image, x1, y1, x2, y2, score and class, best first in each image."""
        boxes, scores = self.detector(images)
        best, labels = scores.max(2)
        best, order = best.sort(dim=1, descending=True, stable=True)
        best, order = best[:, :CANDIDATES], order[:, :CANDIDATES]
        labels = labels.gather(1, order)
        boxes = boxes.gather(1, order.unsqueeze(-1).expand(-1, -1, 4))
        images_of = torch.arange(boxes.shape[0], device=boxes.device).unsqueeze(1).expand_as(labels)
        groups = images_of if self.class_agnostic else images_of * scores.shape[2] + labels
        # The shifts separate the groups. float32 would round the shifted boxes.
        wide = boxes.double()
        shifts = groups.double() * (wide.amax() - wide.amin() + 1)
        (chosen,) = torch.where((best > self.confidence).flatten())
        apart = (wide + shifts.unsqueeze(-1)).flatten(0, 1)[chosen]
        survivors = torch.ops.torchvision.nms(apart, best.flatten()[chosen].double(), self.iou)
        rows = chosen[survivors].sort().values  # image by image, best first in each image
        columns = (images_of.flatten()[rows], best.flatten()[rows], labels.flatten()[rows])
        image, score, label = (one.to(boxes.dtype).unsqueeze(1) for one in columns)
        return torch.cat((image, boxes.flatten(0, 1)[rows], score, label), 1)


_STRIDE = 32
CONFIDENCE = 0.25
"""Default confidence threshold of exports with NMS, as in ``rankless predict``."""


@dataclass(frozen=True)
class ExportOptions:
    """The options of an export; see :func:`rankless.export`."""

    nms: bool = False
    confidence: float | None = None
    batch: int | None = None
    any_size: bool = False
    half: bool = False


@dataclass(frozen=True)
class Plan:
    """A float32 model to export, with its options. If ``batch`` is None, any batch size is accepted."""

    source: Path
    task: Any
    model: nn.Module
    facts: Facts
    batch: int | None
    any_size: bool
    half: bool

    def in_half(self) -> Plan:
        """Return a copy that computes in float16."""
        facts = replace(self.facts, recipe=replace(self.facts.recipe, precision="fp16"))
        return replace(self, facts=facts, half=True)

    def portable(self, *, half: bool | None = None) -> nn.Module:
        """Return a copy of the model without NMS, for other programs. ``half`` overrides the precision."""
        half, network = self.half if half is None else half, copy.deepcopy(self.model).requires_grad_(False)
        made: nn.Module = self.facts.kind.portable(network, self.task, half=half)
        return made.eval()

    def with_nms(self) -> nn.Module:
        """Return a copy of the model for other programs, with NMS if it was requested."""
        made = self.portable()
        if self.facts.nms is None:
            return made
        return WithNms(made, self.facts.recipe.evaluate, self.facts.nms).eval()

    def example(self) -> Tensor:
        """Return random images (B, 3, H, W) for tracing the model."""
        drawn = torch.Generator().manual_seed(0)
        return torch.rand(self.batch or 2, 3, *self.facts.size, generator=drawn)

    def program(self, module: nn.Module) -> Any:
        """Trace a module with ``torch.export``, with dynamic dimensions if the plan allows any size."""
        dim = torch.export.Dim
        shapes: dict[int, Any] = {} if self.batch else {0: dim("batch")}
        if self.any_size:
            shapes |= {2: _STRIDE * dim("rows"), 3: _STRIDE * dim("columns")}
        try:
            with quiet(), torch.no_grad():
                return torch.export.export(module, (self.example(),), dynamic_shapes=(shapes or None,))
        except Exception as error:  # torch.export raises errors of many types
            raise self.unable(error) from error

    def unable(self, error: Exception) -> UserError:
        """Return an error for a model that PyTorch cannot export."""
        reason = " ".join(str(error).split())[:300]
        return UserError(
            f"{self.source}: PyTorch cannot export {self.facts.recipe.model.name} ({reason}); use a "
            "model whose control flow does not depend on its input, or --batch 1 without --any-size"
        )


def plan_export(target: Path, asked: ExportOptions, overrides: Sequence[str]) -> Plan:
    """Load a model to export from a run directory or a weights file."""
    path = trained_weights_of(target)
    loaded = weights.load(path)
    recipe = _changed(loaded.recipe, overrides, path)
    task: Any = open_task(recipe, loaded.class_names)
    exports: Exports = task.exports
    problems = [*_problems(recipe, asked, exports)]
    if problems:
        raise UserError(problems)
    if exports.problem:
        raise UserError(
            f"{path}: {recipe.model.name} cannot be exported, because {exports.problem}; use --format "
            "pth, or another detector"
        )
    model = trained.model(task, loaded, str(path)).eval()
    recipe = replace(
        recipe, precision="fp16" if asked.half else "fp32", model=replace(recipe.model, image_size=task.size)
    )
    confidence = CONFIDENCE if asked.confidence is None else asked.confidence
    facts = Facts(
        recipe,
        tuple(loaded.class_names),
        task.size,
        confidence if asked.nms else None,
        weights.digest(loaded.state),
        placing=task.preprocessing(),
    )
    batch = asked.batch or (None if exports.any_shape else 1)
    return Plan(path, task, model, facts, batch, asked.any_size, asked.half)


def _changed(recipe: Recipe, overrides: Sequence[str], path: Path) -> Recipe:
    keys = kind_of(recipe.task).exported
    if not keys:
        raise UserError(
            f"{path}: '{recipe.task}' is a custom task, whose computation cannot be exported; use "
            "--format pth to export the state dict"
        )
    keys += tuple(key for key, _ in own_code(recipe))  # given again to allow their code
    wrong = [key for key in (one.partition("=")[0] for one in overrides) if key not in keys]
    if wrong:
        raise UserError(
            f"command line: key '{key}': has no effect on an export; expected one of {', '.join(keys)}"
            for key in wrong
        )
    recipe = load.changed(recipe, overrides) if overrides else recipe
    refuse_unasked(recipe, path, overrides)
    return with_absolute_names(recipe)


def _problems(recipe: Recipe, asked: ExportOptions, exports: Exports) -> list[str]:
    problems, kind = [], kind_of(recipe.task)
    if asked.confidence is not None and not asked.nms:
        problems.append("--confidence has an effect only with --nms; add --nms, or remove --confidence")
    elif asked.confidence is not None and not 0 <= asked.confidence <= 1:
        problems.append(f"--confidence is {asked.confidence:g}; expected a number from 0 to 1")
    if asked.batch is not None and asked.batch < 1:
        problems.append(f"--batch is {asked.batch}; expected a whole number of at least 1")
    if asked.nms and not kind.boxes:
        problems.append(f"--nms is for detectors, but these weights belong to {kind.model}; remove --nms")
    elif asked.nms and recipe.evaluate.nms != "iou":
        problems.append(
            f"--nms computes NMS by IoU, but the recipe's evaluate.nms is '{recipe.evaluate.nms}'; add "
            "evaluate.nms=iou, or remove --nms"
        )
    if asked.any_size and (kind.one_size or not exports.any_shape):
        name = kind.model if kind.one_size else recipe.model.name
        problems.append(
            f"--any-size is for YOLO and anchor-free detectors, but {name} accepts only one size; remove "
            "--any-size"
        )
    return problems
