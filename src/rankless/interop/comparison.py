"""Compare an exported model with PyTorch on real images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rankless.data.builtin import is_built_in
from rankless.errors import UserError, counted
from rankless.interop.export_plan import Plan
from rankless.models.exported.sessions import Session
from rankless.recipe.schema import Data
from rankless.structures import Detections, network_input
from rankless.tasks import open_task

IMAGES = 4
"""Number of images to compare."""
_BEST = 100
"""Number of candidates per image whose boxes are compared. Lower-ranked ones rarely survive NMS."""


@dataclass(frozen=True)
class Limits:
    """The permitted differences between an export and PyTorch.

    ``boxes`` is in pixels of the input, and ``missing`` is a fraction of the detections after NMS.
    """

    scores: float
    boxes: float
    missing: float


# Observed differences: 1e-6 and 1e-4 pixels in float32, 5e-3 and 1 pixel in float16.
LIMITS = {"fp32": Limits(1e-3, 0.1, 0.0), "fp16": Limits(0.05, 8.0, 0.1)}


@dataclass(frozen=True)
class Agreement:
    """The maximum differences between an export and PyTorch in float32 on some images of a data set.

    Attributes:
        boxes: difference of box coordinates, or None for a classifier. The unit is pixels of the input (with
            NMS, of the image). Differences of boxes larger than 1000 pixels are scaled to that size.
        detections: number of detections by PyTorch after NMS, or None without NMS.
        missing: number of detections found only by PyTorch or only by the export.
    """

    images: int
    data: str
    scores: float
    boxes: float | None = None
    detections: int | None = None
    missing: int = 0

    def sentence(self) -> str:
        """Describe the result in one line."""
        where = f"{counted(self.images, 'image')} of {self.data}"
        if self.boxes is None:
            return f"compared with PyTorch on {where}: probabilities differ by at most {self.scores:.1e}"
        far = f"scores differ by at most {self.scores:.1e}, boxes by {self.boxes:.1e} pixels"
        if self.detections is None:
            return f"compared with PyTorch on {where}: {far}"
        if not self.detections and not self.missing:
            return (
                f"neither PyTorch nor the export finds objects in {where}, so no boxes were compared; use a "
                "lower --confidence, or set data.root to a folder with other images"
            )
        same = f"{max(self.detections - self.missing, 0)} of {counted(self.detections, 'detection')} agree"
        return f"compared with PyTorch on {where}: {same}; {far}"

    def is_close(self, limits: Limits) -> bool:
        """Check whether all differences are within the given limits."""
        few = self.missing <= limits.missing * max(self.detections or 0, 1)
        return self.scores <= limits.scores and (self.boxes or 0.0) <= limits.boxes and few


def compare(plan: Plan, session: Session, source: str) -> Agreement:
    """Compare the outputs of an export with PyTorch's on the same images."""
    batch, data = images(plan)
    facts = plan.facts
    classes, nms = len(facts.class_names), facts.nms is not None
    theirs: Any = facts.kind.run_export(session, source, classes, nms=nms)
    ours = plan.portable(half=False)
    with torch.inference_mode():
        seen = network_input(batch.images)
        if nms:
            return _detections(plan, theirs, batch, data)
        agreement: Agreement = facts.kind.compare(ours(seen), theirs(seen), data)
        return agreement


def images(plan: Plan) -> tuple[Any, str]:
    """Return a batch of the first evaluation images, and a description of their data set.

    Without evaluation data, training images are used. If no image can be read, built-in data is used.
    """
    recipe, names = plan.facts.recipe, plan.facts.class_names
    recipe = replace(recipe, evaluate=replace(recipe.evaluate, rectangular=False))
    if recipe.data.val == "none":
        recipe = replace(recipe, data=replace(recipe.data, val=recipe.data.train))
    task: Any = open_task(recipe, names)
    items: list[Any] = []
    try:
        data = task.evaluation_data()
        candidates: Iterator[Any] = (data.item(index, 0) for index in range(min(len(data), 4 * IMAGES)))
        items = [item for item in candidates if not item.unreadable][:IMAGES]
    except UserError:  # the data is not on this machine
        pass
    if items:
        root = recipe.data.root
        where = f"the built-in {root}" if is_built_in(root) else f"{root} ({recipe.data.val})"
        return task.collate(items), where
    keys = ("root", "train", "val", "format", "classes", "ignore_class")
    settings = replace(recipe.data, **{key: getattr(Data, key) for key in keys})
    task = open_task(replace(recipe, data=settings))
    data = task.evaluation_data()
    items = [data.item(index, 0) for index in range(IMAGES)]
    return task.collate(items), f"the built-in {Data.root} (because {recipe.data.root} cannot be read)"


def of_probabilities(ours: Tensor, theirs: Tensor, data: str) -> Agreement:
    """Compare PyTorch's probabilities (B, C) with the logarithms of an export's."""
    return Agreement(len(ours), data, _number((ours - theirs.exp()).abs().max()))


def of_candidates(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], data: str) -> Agreement:
    """Compare the boxes (B, P, 4) of the best candidates, and the scores (B, P, C)."""
    boxes, scores = ours
    best = scores.amax(2).topk(min(_BEST, scores.shape[1]), 1).indices.unsqueeze(-1).expand(-1, -1, 4)
    return Agreement(
        len(boxes),
        data,
        _number((scores - theirs[1]).abs().max()),
        _number(_apart(boxes.gather(1, best), theirs[0].gather(1, best)).max()),
    )


def _detections(plan: Plan, theirs: nn.Module, batch: Any, data: str) -> Agreement:
    recipe, confidence = plan.facts.recipe, plan.facts.nms or 0.0
    settings = replace(recipe.evaluate, confidence=confidence, multi_label=False, tta="none")
    task: Any = open_task(replace(recipe, evaluate=settings), plan.facts.class_names)
    pairs = zip(task.predict(plan.model, batch), task.predict(theirs, batch), strict=True)
    limits = LIMITS[recipe.precision]
    count, missing, scores, boxes = 0, 0, 0.0, 0.0
    for ours, others in pairs:
        matches = _matches(ours, others, limits)
        for first, second in matches:
            scores = max(scores, _number((ours.scores[first] - others.scores[second]).abs()))
            boxes = max(boxes, _number(_apart(ours.boxes[first], others.boxes[second]).max()))
        count += len(ours.boxes)
        for found, side in ((ours, 0), (others, 1)):
            alone = set(range(len(found.boxes))) - {match[side] for match in matches}
            # A score near the confidence threshold may exceed it in only one of the two.
            missing += sum(float(found.scores[one]) - confidence > limits.scores for one in alone)
    return Agreement(len(batch.images), data, scores, boxes, count, missing)


def _matches(ours: Detections, theirs: Detections, limits: Limits) -> list[tuple[int, int]]:
    """Pair the detections in an image that have the same class and differ within the limits."""
    apart = _apart(ours.boxes[:, None], theirs.boxes[None]).amax(2)  # (N, M)
    is_close = (ours.scores[:, None] - theirs.scores[None]).abs() <= limits.scores
    is_same = ours.labels[:, None] == theirs.labels[None]
    free = torch.where(is_close & is_same & (apart <= limits.boxes), apart, torch.inf)
    pairs: list[tuple[int, int]] = []
    for first in range(len(free) if free.shape[1] else 0):
        distance, second = free[first].min(0)
        if distance.isfinite():
            pairs.append((first, int(second)))
            free[:, second] = torch.inf
    return pairs


def _apart(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the differences between boxes (…, 4), scaled as in :class:`Agreement`."""
    sides = (ours[..., 2:] - ours[..., :2]).amax(-1, keepdim=True)
    return (ours - theirs).abs() / (sides / 1000).clamp(min=1)


def _number(value: Tensor) -> float:
    found = float(value)
    return math.inf if math.isnan(found) else found
