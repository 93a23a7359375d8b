"""Predictions of a trained classifier: the best five classes, the first drawn as a caption."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rankless.data.datasets.builtin import DigitImages
from rankless.data.datasets.classification_input import shown_as
from rankless.data.images.drawing import Mark
from rankless.data.images.image_file import Decoded, UnreadableImage
from rankless.models.checkpoints import weights
from rankless.tasks.classify import Classify
from rankless.tasks.memory_check import refuse_giant_image

BEST = 5
"""Number of classes that are reported."""


class ClassFinder:
    """Predicts with a trained classifier.

    Args:
        loaded: its weights, with their recipe and class names.
        confidence: less likely classes are left out, 0..1.
        device: of the computation.
        source: the weights' file, for messages.

    Raises:
        UserError: the weights do not fit their recipe.
    """

    def __init__(self, loaded: weights.Weights, confidence: float, device: torch.device, source: str) -> None:
        self.confidence, self.best = confidence, 0.0
        self.task = Classify(loaded.recipe, class_names=loaded.class_names)
        refuse_giant_image(self.task.size, source)
        model = self.task.model()
        weights.load_into(model, loaded.state, source)
        self.model, self.device = model.to(device).eval(), device
        data = loaded.recipe.data
        self.shown = shown_as(self.task.size, data.augment.crop < 1, data.detail)

    def scene(self, split: str, index: int) -> Tensor:
        """Return a digit of the built-in data, uint8 (3, H, W).

        Raises:
            UnreadableImage: the index is too large.
        """
        digits = DigitImages(split)
        if index >= len(digits):
            reason = f"the built-in data has the digits 0 to {len(digits) - 1} in '{split}'"
            raise UnreadableImage(f"digits:{split}:{index}", reason)
        return digits.read(index)

    def find(self, view: Decoded) -> tuple[list[dict[str, Any]], list[Mark]]:
        """Return the best classes of an image, most likely first, and its caption."""
        batch = self.task.collate([self.task.item(view.image)])
        (found,) = self.task.predict(self.model, batch.to(self.device))
        scores, labels = found.log_probabilities.exp().sort(descending=True, stable=True)
        names = self.task.class_names
        self.best = max(self.best, float(scores[0]))
        rows = [
            {"score": round(score, 4), "label": label, "name": names[label]}
            for score, label in zip(scores[:BEST].tolist(), labels[:BEST].tolist(), strict=True)
            if score >= self.confidence
        ]
        height, width = view.source
        whole = (0.0, 0.0, float(width), float(height))
        return rows, [
            Mark(whole, f"{best['name']}: {best['score']:.0%}", int(best["label"])) for best in rows[:1]
        ]
