"""Find the images with a model's worst errors, and labels that are probably wrong.

A detector's errors are classified as in TIDE (Bolya et al., "TIDE: A General Toolbox for Identifying Object
Detection Errors", 2020): classification, localization, duplicate, background and missed. The cost of a wrong
detection is its score. The cost of a missed object is one minus the score of its best correct detection.

A label is probably wrong if the model confidently predicts another class for it, or predicts nothing near it.
A label is probably missing if the model confidently predicts an object that is not labeled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from rankless.data.path_checks import refuse_gone
from rankless.errors import UserError, printable
from rankless.hardware.compute_device import compute_device
from rankless.hardware.computing import float32_like, forward_pass
from rankless.hardware.precision import resolve
from rankless.metrics.box_matching import IOU, ImageBoxes, image_boxes
from rankless.recipe import load
from rankless.recipe.used import refuse_unused_in_scoring
from rankless.runs.directory import weights_of
from rankless.structures import Classification, Detections
from rankless.task_kinds import BUILT_IN, kind_of
from rankless.tasks import open_task, trained
from rankless.tasks.custom import refuse_unasked, with_absolute_names
from rankless.tasks.report_details import as_truth

_LOWEST = 0.05
"""Minimum score for a detection to match an object."""
_NEAR = 0.1
"""Minimum IoU for a detection to belong to an object."""
SURE = 0.5
"""Minimum ``doubt`` for a label to count as probably wrong."""
Kind = Literal["classification", "localization", "duplicate", "background", "missed"]
Box = tuple[float, float, float, float]


class Mistake(NamedTuple):
    """One error of a model.

    Attributes:
        box: box of the detection or of the missed object, xyxy in pixels; zeros for a classifier.
        predicted: predicted class id; -1 for a missed object.
        label: annotated class id; -1 for background.
        cost: cost of the error, 0..1.
        doubt: estimated probability that the annotation is wrong, 0..1.
        annotated: annotated box that the detection belongs to, if any.
    """

    kind: Kind
    box: Box
    predicted: int
    label: int
    cost: float
    doubt: float
    annotated: Box | None = None


@dataclass
class WrongImage:
    """An image and a model's errors in it, the costliest first."""

    index: int
    source: str
    mistakes: list[Mistake]

    @property
    def cost(self) -> float:
        return sum(one.cost for one in self.mistakes)


@dataclass
class ModelErrors:
    """All errors of a model on a split.

    Attributes:
        readable: number of readable images.
        images: images with errors, the worst first.
        unreadable: path of each unreadable image, and the reason.
        best: highest score of any detection, 0..1.
        confidence: minimum score for a wrong detection to count as an error.
    """

    model: str
    weights: Path
    data: str
    split: str
    class_names: tuple[str, ...]
    readable: int
    images: list[WrongImage]
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    best: float = 0.0
    confidence: float = 0.0

    @property
    def is_blind(self) -> bool:
        """Whether no detection reaches ``confidence``. If so, the labels cannot be judged."""
        return self.best < self.confidence

    def counts(self) -> dict[str, int]:
        return dict(Counter(one.kind for image in self.images for one in image.mistakes))

    def doubtful(self) -> list[tuple[WrongImage, Mistake]]:
        """Return each label that is probably wrong, with its image, the likeliest errors first."""
        every = [(image, one) for image in self.images for one in image.mistakes if one.doubt >= SURE]
        return [] if self.is_blind else sorted(every, key=lambda pair: (-pair[1].doubt, pair[0].index))

    def name(self, label: int) -> str:
        return "nothing" if label < 0 else self.class_names[label]

    def as_json(self, count: int) -> dict[str, Any]:
        """Return JSON-compatible data with the ``count`` worst images and most doubtful labels."""
        return {
            "weights": str(self.weights),
            "data": self.data,
            "split": self.split,
            "images": self.readable,
            "with_errors": len(self.images),
            "errors": self.counts(),
            "worst": [
                {
                    "source": image.source,
                    "cost": round(image.cost, 4),
                    "errors": [self._plain(one) for one in image.mistakes],
                }
                for image in self.images[:count]
            ],
            "doubtful_labels": [
                {"source": image.source, **self._plain(one), "doubt": round(one.doubt, 4)}
                for image, one in self.doubtful()[:count]
            ],
            "unreadable": [{"source": source, "reason": reason} for source, reason in self.unreadable],
        }

    def _plain(self, one: Mistake) -> dict[str, Any]:
        return {
            "kind": one.kind,
            "box": [round(side, 2) for side in one.box],
            "predicted": None if one.predicted < 0 else self.class_names[one.predicted],
            "label": None if one.label < 0 else self.class_names[one.label],
            "cost": round(one.cost, 4),
        }


@dataclass(frozen=True)
class Opened:
    """A trained model, and its task with open evaluation data."""

    name: str
    path: Path
    task: Any
    model: torch.nn.Module
    device: torch.device


def open_model(target: Path, overrides: Sequence[str] = (), split: str | None = None) -> Opened:
    """Load the weights file or the best weights of the run ``target``, and open the evaluation data.

    The default ``split`` is the recipe's ``data.val``.
    """
    loaded = trained.load(path := weights_of(target))
    if loaded.recipe.task not in BUILT_IN:
        raise UserError(
            f"{path}: the task is '{printable(loaded.recipe.task)}', but errors are listed only for built-in "
            "tasks; expected a detector or a classifier"
        )
    refuse_unused_in_scoring(overrides, loaded.recipe.task)
    recipe = load.changed(loaded.recipe, [*overrides, *([f"data.val={split}"] if split else [])])
    refuse_unasked(recipe, path, overrides)
    recipe = with_absolute_names(recipe)
    if recipe.data.val == "none":
        raise UserError(
            f"{path}: this model was trained with data.val=none; select a split with --split NAME"
        )
    refuse_gone(recipe.data.root, loaded.recipe.data.root, path)
    device = compute_device()
    recipe = replace(recipe, precision=resolve(recipe.precision, device, recipe.cpu_isa))
    if kind_of(recipe.task).boxes:  # each box gets only its best class, as in prediction
        evaluate = replace(recipe.evaluate, confidence=_LOWEST, multi_label=False, rectangular=False)
        recipe = replace(recipe, evaluate=evaluate)
    task: Any = open_task(recipe, loaded.class_names, exported=trained.is_exported(loaded))
    task.evaluation_data()
    model = trained.model(task, replace(loaded, recipe=recipe), str(path))
    return Opened(target.resolve().name, path, task, model.to(device).eval(), device)


def find_errors(
    opened: Opened, *, confidence: float = 0.25, done: Callable[[], object] = lambda: None
) -> ModelErrors:
    """Predict on all evaluation images and compare the results with the annotations.

    Detections with a score below ``confidence`` are not errors. ``done`` is called after every image.
    """
    task, data = opened.task, opened.task.evaluation_data()
    recipe, kind = task.recipe, kind_of(task.recipe.task)
    found = ModelErrors(opened.name, opened.path, recipe.data.root, recipe.data.val, task.class_names, 0, [])
    found.confidence = confidence if kind.boxes else 0.0
    size = max(recipe.batch.micro, 1)
    for first in range(0, len(data), size):
        indices = range(first, min(first + size, len(data)))
        with float32_like(recipe.precision):
            batch = task.collate([data.item(index, 0) for index in indices])
            with torch.inference_mode(), forward_pass(recipe.precision, opened.device, training=False):
                answers = task.predict(opened.model, batch.to(opened.device))
        missing = {one.index: one for one in batch.unreadable}
        for index, answer in zip(indices, answers, strict=True):
            if one := missing.get(index):
                found.unreadable.append((one.path, one.reason))
            else:
                found.readable += 1
                if kind.boxes:
                    found.best = max([found.best, *answer.scores.tolist()])
                if mistakes := list(kind.mistakes(data, index, answer, confidence)):
                    mistakes.sort(key=lambda one: -one.cost)
                    found.images.append(WrongImage(index, data.images.source(index), mistakes))
            done()
    found.images.sort(key=lambda image: (-image.cost, image.index))
    return found


def of_classification(data: Any, index: int, answer: Classification, _: float) -> Iterator[Mistake]:
    """Yield a classifier's error in an image of the evaluation data, if there is one."""
    label, probabilities = data.images.label(index), answer.log_probabilities.exp()
    best = int(probabilities.argmax())
    if best != label:
        sure, cost = float(probabilities[best]), 1 - float(probabilities[label])
        yield Mistake("classification", (0.0, 0.0, 0.0, 0.0), best, label, cost, sure)


def of_detections(data: Any, index: int, answer: Detections, confidence: float) -> Iterator[Mistake]:
    """Yield a detector's errors in an image of the evaluation data; see :func:`of_boxes`."""
    return of_boxes(image_boxes(as_truth(data.ground_truth(index)), answer), confidence)


def of_boxes(image: ImageBoxes, confidence: float) -> Iterator[Mistake]:
    """Yield a detector's errors in one image. Detections with a score below ``confidence`` are not errors."""
    finder = _finders(image)
    right, explained = set(finder.values()), set(finder)
    for row in np.flatnonzero(image.scores >= confidence).tolist():
        if row not in right and not (image.same[row] & ~image.counts).any():
            one, column = _of_detection(image, row, finder)
            explained.add(column)
            yield one
    for column in np.flatnonzero(image.counts).tolist():
        score = float(image.scores[finder[column]]) if column in finder else 0.0
        if score < confidence and (column in finder or column not in explained):
            near = image.scores[image.overlaps[:, column] >= _NEAR]
            # If there is no box near the label, not even one with a low score, the label may be wrong.
            doubt = 0.0 if len(near) else SURE
            box = _box(image.truths[column])
            yield Mistake("missed", box, -1, int(image.labels[column]), 1 - score, doubt, box)


def _of_detection(image: ImageBoxes, row: int, finder: Mapping[int, int]) -> tuple[Mistake, int]:
    """Return the error of an unmatched detection, and the index of the object that it belongs to, or -1."""
    score, predicted = float(image.scores[row]), int(image.found[row])
    overlaps = image.overlaps[row] * image.counts
    near = int(overlaps.argmax()) if len(overlaps) else -1
    overlap = float(overlaps[near]) if near >= 0 else 0.0
    label = int(image.labels[near]) if near >= 0 else -1
    kind: Kind = "background"
    doubt = score if overlap < _NEAR else 0.0  # a missing label would explain the detection
    if label == predicted and overlap >= _NEAR:
        kind, doubt = ("duplicate" if overlap >= IOU else "localization"), 0.0
    elif overlap >= IOU:  # a wrong label would explain it, unless the annotated class is also detected
        kind, doubt = "classification", score - (float(image.scores[finder[near]]) if near in finder else 0.0)
    if kind == "background":
        label, near = -1, -1
    annotated = _box(image.truths[near]) if near >= 0 else None
    return Mistake(kind, _box(image.boxes[row]), predicted, label, score, max(0.0, doubt), annotated), near


def _finders(image: ImageBoxes) -> dict[int, int]:
    """Match detections to objects as COCO does, and return the index of each matched object's detection."""
    finder: dict[int, int] = {}
    for row in range(len(image.scores)):
        free = np.flatnonzero(image.same[row] & image.counts)
        candidates = [column for column in free.tolist() if column not in finder]
        if candidates:
            finder[max(candidates, key=lambda column: (image.overlaps[row, column], column))] = row
    return finder


def _box(sides: Any) -> Box:
    x1, y1, x2, y2 = sides.tolist()
    return x1, y1, x2, y2
