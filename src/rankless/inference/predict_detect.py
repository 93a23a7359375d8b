"""Predictions of a trained detector: boxes, each under its best class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rankless.data.datasets.builtin import DigitScenes
from rankless.data.images.drawing import Mark
from rankless.data.images.image_file import Decoded, Shown
from rankless.geometry.letterbox import in_source, whole
from rankless.models.checkpoints import weights
from rankless.structures import DetectionItem
from rankless.tasks.detect import SCENE_SIZE, Detect
from rankless.tasks.memory_check import refuse_giant_image

_LOOKED_AT = 0.05
"""Scores from here on are known even if ``confidence`` is higher, to say what a lower one would find."""


class BoxFinder:
    """Predicts with a trained detector.

    Args:
        loaded: its weights, with their recipe and class names.
        confidence: detections with a lower score are left out, 0..1; None: 0.25.
        device: of the computation.
        source: the weights' file, for messages.

    Raises:
        UserError: the weights do not fit their recipe.
    """

    def __init__(
        self, loaded: weights.Weights, confidence: float | None, device: torch.device, source: str
    ) -> None:
        recipe = loaded.recipe
        self.confidence, self.best = 0.25 if confidence is None else float(confidence), 0.0
        # What scores lower never displaces what scores higher: more candidates change nothing above it.
        lowest = min(self.confidence, _LOOKED_AT)
        recipe = replace(recipe, evaluate=replace(recipe.evaluate, confidence=lowest, multi_label=False))
        self.task = Detect(recipe, class_names=loaded.class_names)
        model = self.task.model()
        refuse_giant_image(self.task.size, source, self.task.spec.activations(self.task.size))
        weights.load_into(model, loaded.state, source)
        self.model, self.device = model.to(device).eval(), device
        self.shown = Shown(self.task.size, recipe.data.fit, self.task.detail)

    def scene(self, split: str, index: int) -> Tensor:
        """Return a scene of the built-in data, uint8 (3, H, W)."""
        # As in training: validation scenes do not depend on the seed.
        seed = self.task.recipe.seed if split == "train" else 0
        return DigitScenes(split, index + 1, seed, SCENE_SIZE).read(index).image

    def find(self, view: Decoded) -> tuple[list[dict[str, Any]], list[Mark]]:
        """Detect objects, each with its best class, in pixels of the image; return rows and what to draw."""
        fit = self.task.recipe.data.fit
        placed, where = whole(view.image, self.task.size, fit, placing=self.task.placing)
        where = in_source(where, view.reduced, view.source)
        item = DetectionItem(placed, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 0, where)
        (found,) = self.task.predict(self.model, self.task.collate([item]).to(self.device))
        self.best = max([self.best, *found.scores[:1].tolist()])
        chosen = found.scores > self.confidence
        boxes, scores, labels = (one[chosen].tolist() for one in (found.boxes, found.scores, found.labels))
        names = self.task.class_names
        rows = [
            {
                "box": [round(side, 2) for side in box],
                "score": round(score, 4),
                "label": label,
                "name": names[label],
            }
            for box, score, label in zip(boxes, scores, labels, strict=True)
        ]
        marks = [
            Mark(tuple(box), f"{names[label]}: {score:.0%}", label)
            for box, score, label in zip(boxes, scores, labels, strict=True)
        ]
        return rows, marks
