"""What is exported: the model as other programs get it, the shapes it takes, and what the file says."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.interop.portable import PortableClassifier, PortableDetector, WithNms
from rankless.interop.quiet import quiet
from rankless.models.checkpoints import weights
from rankless.models.detectors.torchvision import MODELS as TORCHVISION
from rankless.models.detectors.torchvision_modules import FasterRCNN
from rankless.models.exported.facts import Facts
from rankless.recipe import load
from rankless.recipe.schema import Recipe
from rankless.runs.trained_weights import trained_weights_of
from rankless.tasks import open_task, trained

_ALL_KEYS = ("model.image_size", "data.root", "data.val")
_KEYS = {
    "detect": (*_ALL_KEYS, "evaluate.iou", "evaluate.nms", "evaluate.class_agnostic"),
    "classify": _ALL_KEYS,
}
_STRIDE = 32
CONFIDENCE = 0.25
"""Detections that score no higher are left out of files with NMS, as ``rankless predict`` leaves them out."""


@dataclass(frozen=True)
class ExportOptions:
    """How a model is exported.

    Attributes:
        nms: NMS inside.
        confidence: of the NMS; None: 0.25.
        batch: images that the file takes at once; None: any number.
        any_size: it takes any height and width in multiples of 32.
        half: the network computes in float16.
    """

    nms: bool = False
    confidence: float | None = None
    batch: int | None = None
    any_size: bool = False
    half: bool = False


@dataclass(frozen=True)
class Plan:
    """What is exported.

    Attributes:
        source: the weights file.
        task: of the recipe, for predictions and images.
        model: trained, in float32.
        facts: what the file says.
        batch: images that it takes at once; None: any number.
        any_size: it takes any height and width in multiples of 32.
        half: the network computes in float16.
    """

    source: Path
    task: Any
    model: nn.Module
    facts: Facts
    batch: int | None
    any_size: bool
    half: bool

    def in_half(self) -> Plan:
        """Return the plan of the same model in float16."""
        facts = replace(self.facts, recipe=replace(self.facts.recipe, precision="fp16"))
        return replace(self, facts=facts, half=True)

    def portable(self, *, half: bool | None = None) -> nn.Module:
        """Return the model as other programs get it, without NMS; a copy.

        Args:
            half: in float16; as planned if not given.
        """
        half, network = self.half if half is None else half, copy.deepcopy(self.model).requires_grad_(False)
        if self.facts.recipe.task == "classify":
            return PortableClassifier(network, self.task.mean, self.task.std, half=half).eval()
        return PortableDetector(network, half=half).eval()

    def with_nms(self) -> nn.Module:
        """Return the model with its NMS, if it is asked for; a copy."""
        made = self.portable()
        if self.facts.nms is None or not isinstance(made, PortableDetector):
            return made
        return WithNms(made, self.facts.recipe.evaluate, self.facts.nms).eval()

    def example(self) -> Tensor:
        """Return random images, (B, 3, H, W), with which the model is traced."""
        drawn = torch.Generator().manual_seed(0)
        return torch.rand(self.batch or 2, 3, *self.facts.size, generator=drawn)

    def program(self, module: nn.Module) -> Any:
        """Trace a module with ``torch.export``, with the shapes that the file takes."""
        dim = torch.export.Dim
        shapes: dict[int, Any] = {} if self.batch else {0: dim("batch")}
        if self.any_size:
            shapes |= {2: _STRIDE * dim("rows"), 3: _STRIDE * dim("columns")}
        try:
            with quiet(), torch.no_grad():
                return torch.export.export(module, (self.example(),), dynamic_shapes=(shapes or None,))
        except Exception as error:  # of many types
            raise self.unable(error) from error

    def unable(self, error: Exception) -> UserError:
        """Say that PyTorch cannot export the model."""
        reason = " ".join(str(error).split())[:300]
        return UserError(
            f"{self.source}: PyTorch cannot export {self.facts.recipe.model.name} ({reason}); expected a "
            "model without control flow that depends on its input; try --batch 1 without --any-size"
        )


def planned(target: Path, asked: ExportOptions, overrides: Sequence[str]) -> Plan:
    """Load what is to be exported and decide how.

    Args:
        target: a run directory or a weights file.
        asked: options.
        overrides: changes to the recipe, ``key=value``.
    """
    path = trained_weights_of(target)
    loaded = weights.load(path)
    recipe = _changed(loaded.recipe, overrides, path)
    problems = [*_problems(recipe, asked)]
    if problems:
        raise UserError(problems)
    task: Any = open_task(recipe, loaded.class_names)
    model = trained.model(task, loaded, str(path)).eval()
    if isinstance(model, FasterRCNN):
        raise UserError(
            f"{path}: {recipe.model.name} cannot be exported: its second stage computes as many boxes as the "
            "first proposes, which PyTorch cannot trace; use --format pth, or another detector"
        )
    recipe = replace(
        recipe,
        precision="fp16" if asked.half else "fp32",
        model=replace(recipe.model, image_size=task.size),
    )
    confidence = CONFIDENCE if asked.confidence is None else asked.confidence
    facts = Facts(
        recipe,
        tuple(loaded.class_names),
        task.size,
        confidence if asked.nms else None,
        weights.digest(loaded.state),
        cropped=recipe.task == "classify" and recipe.data.augment.crop < 1,
    )
    # Their anchors are computed for a batch of a known size.
    batch = asked.batch or (1 if recipe.model.name in TORCHVISION else None)
    return Plan(path, task, model, facts, batch, asked.any_size, asked.half)


def _changed(recipe: Recipe, overrides: Sequence[str], path: Path) -> Recipe:
    keys = _KEYS.get(recipe.task)
    if keys is None:
        raise UserError(
            f"{path}: its task is '{recipe.task}', one of your own; expected detect or classify; export its "
            "state dict with --format pth"
        )
    wrong = [key for key in (one.partition("=")[0] for one in overrides) if key not in keys]
    if wrong:
        raise UserError(
            f"command line: key '{key}': an export does not use it; expected one of {', '.join(keys)}"
            for key in wrong
        )
    return load.changed(recipe, overrides) if overrides else recipe


def _problems(recipe: Recipe, asked: ExportOptions) -> list[str]:
    """Find options that do not fit the recipe."""
    problems = []
    is_detector, is_torchvision = recipe.task == "detect", recipe.model.name in TORCHVISION
    if asked.confidence is not None and not asked.nms:
        problems.append("--confidence is of the NMS inside; add --nms, or leave it out")
    elif asked.confidence is not None and not 0 <= asked.confidence <= 1:
        problems.append(f"--confidence is {asked.confidence:g}: expected a number from 0 to 1")
    if asked.batch is not None and asked.batch < 1:
        problems.append(f"--batch is {asked.batch}: expected a whole number of at least 1")
    if asked.nms and not is_detector:
        problems.append("--nms is for detectors, and these weights are a classifier's; leave it out")
    elif asked.nms and recipe.evaluate.nms != "iou":
        problems.append(
            f"--nms computes NMS by IoU, and the recipe's evaluate.nms is '{recipe.evaluate.nms}'; add "
            "evaluate.nms=iou, or leave --nms out"
        )
    if asked.any_size and (not is_detector or is_torchvision):
        kind = (
            f"{recipe.model.name} has anchors of one size" if is_torchvision else "a classifier has one size"
        )
        problems.append(f"--any-size is for YOLO and anchor-free detectors, and {kind}; leave it out")
    return problems
