"""Detect objects in images with a trained detector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from rankless.data.datasets.class_matching import nearest_class
from rankless.data.datasets.detection import open_images, shown_in
from rankless.data.images.image_file import Decoded, Pixels
from rankless.errors import UserError, listed
from rankless.geometry.letterbox import in_source, whole
from rankless.hardware.precision import dtype_of
from rankless.inference.finder import Finder, PredictOptions
from rankless.inference.heatmaps import heat, in_image
from rankless.inference.results import DetectionResult
from rankless.models.detectors.protocol import Detector
from rankless.models.folding import fold_batch_norms
from rankless.models.weights_files import weights
from rankless.recipe.schema import Data
from rankless.structures import DetectionItem, Detections, Letterbox
from rankless.tasks.detect import Detect

_MOST = 100_000  # largest evaluate.detections that a recipe allows


class Answer(NamedTuple):
    """The detections in one image, in pixels of the image.

    ``best`` is the highest score, even if it is below the confidence threshold. ``heat`` is the heat map of
    the input, if requested.
    """

    found: Detections
    letterbox: Letterbox
    best: float
    heat: Tensor | None = None


class BoxFinder(Finder):
    """A predictor that uses a trained detector. Its recipe says whether a box may have several classes.

    It reports boxes of the given classes, or of all classes if none are given, with scores above
    ``confidence`` (by default, 0.25). Messages mention ``source``, the weights file.
    """

    def __init__(
        self, loaded: weights.Weights, asked: PredictOptions, device: torch.device, source: str
    ) -> None:
        recipe = loaded.recipe
        self.confidence = 0.25 if asked.confidence is None else float(asked.confidence)
        self.wanted = chosen_classes(asked.classes, loaded.class_names)
        evaluate = replace(recipe.evaluate, confidence=self.confidence)
        self.most = evaluate.detections
        if self.wanted:  # unwanted classes must not use up the maximum number of detections
            evaluate = replace(evaluate, detections=_MOST)
        recipe = replace(recipe, evaluate=evaluate)
        self.task: Detect = self._load(recipe, loaded, device, source)
        self.fused = fold_batch_norms(self.model, dtype_of(recipe.precision))
        self.shown = shown_in(self.task.size, recipe.data)

    def scene(self, data: Data, split: str, index: int) -> Tensor:
        # As in training, validation scenes do not depend on the seed.
        seed = self.task.recipe.seed if split == "train" else 0
        return open_images(data, split, index + 1, seed, self.task.size).read(index).image

    def item(self, view: Decoded) -> DetectionItem:
        fit = self.task.recipe.data.fit
        placed, where = whole(view.image, self.task.size, fit, placing=self.task.placing)
        where = in_source(where, view.reduced, view.source)
        return DetectionItem(placed, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 0, where)

    def answers(self, items: Sequence[DetectionItem], batch: int) -> list[Answer]:
        padded = self.task.collate([*items, *[items[-1]] * (batch - len(items))]).to(self.device)
        recorder = _DecodingRecorder(self.model)
        found = self.task.predict(recorder, padded)
        decoded = [(boxes, scores[..., self.wanted or slice(None)]) for boxes, scores in recorder.decoded]
        best = [float(one.scores[0]) if len(one.scores) else 0.0 for one in found]
        for _, scores in decoded:  # max() ignores NaN as its second argument
            best = [max(*pair) for pair in zip(best, scores.flatten(1).amax(1).tolist(), strict=True)]
        maps: list[Tensor | None] = [None] * len(found)
        if self.heat:  # without test-time augmentation
            maps = [
                heat(boxes, scores.amax(-1), self.task.size)
                for boxes, scores in zip(*decoded[0], strict=True)
            ]
        answers = [
            Answer(self._wanted(one), where, top, level)
            for one, where, top, level in zip(found, padded.letterboxes, best, maps, strict=True)
        ]
        return answers[: len(items)]

    def best(self, answer: Answer) -> float:
        return answer.best

    def result(self, answer: Answer, image: Pixels, source: str) -> DetectionResult:
        found = answer.found
        chosen = found.scores > self.confidence
        boxes, scores, labels = (one[chosen].numpy() for one in (found.boxes, found.scores, found.labels))
        boxes = boxes.astype(np.float32).reshape(-1, 4)
        return DetectionResult(
            image=image,
            xyxy=boxes,
            scores=scores,
            classes=labels,
            class_names=self.class_names,
            source=source,
        )

    def level(self, answer: Answer, image: Pixels) -> Pixels | None:
        return None if answer.heat is None else in_image(answer.heat, answer.letterbox, self.task.size)

    def _wanted(self, found: Detections) -> Detections:
        if not self.wanted:
            return found
        chosen = torch.isin(found.labels, torch.tensor(self.wanted)).nonzero().squeeze(1)[: self.most]
        return replace(
            found, boxes=found.boxes[chosen], scores=found.scores[chosen], labels=found.labels[chosen]
        )


class _DecodingRecorder(nn.Module):
    """A detector that stores its decoded outputs."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector, self.training = detector, detector.training
        self.decoded: list[tuple[Tensor, Tensor]] = []

    def forward(self, images: Tensor) -> Any:
        return self.detector(images)

    def decode(self, raw: Any) -> tuple[Tensor, Tensor]:
        self.decoded.append(cast(Detector, self.detector).decode(raw))
        return self.decoded[-1]


def chosen_classes(classes: Sequence[str | int], names: Sequence[str]) -> list[int]:
    """Return the sorted ids of classes that are given by name or id."""
    labels, problems = [], []
    for given in classes:
        if given in names:
            labels.append(list(names).index(str(given)))
        elif str(given).isdecimal() and int(given) < len(names):
            labels.append(int(given))
        else:
            problems.append(
                f"--classes contains '{given}'; expected names of the model's classes ({listed(names)}) or "
                f"their numbers{nearest_class(str(given), names)}"
            )
    if problems:
        raise UserError(problems)
    return sorted(set(labels))
