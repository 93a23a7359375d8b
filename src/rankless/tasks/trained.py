"""Load a task's trained model from a weights file or an exported file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from rankless.errors import UserError
from rankless.models.exported import loading
from rankless.models.exported.loading import Exported
from rankless.models.weights_files import weights
from rankless.models.weights_files.weights import Weights
from rankless.recipe.schema import Evaluate, Recipe


def load(path: Path) -> Weights:
    """Read a weights file or an exported file."""
    return loading.load(path) if loading.is_exported(path) else weights.load(path)


def model(task: Any, loaded: Weights, source: str) -> nn.Module:
    """Return the task's model with the loaded weights, on the CPU. Error messages name ``source``.

    If the weights are from an exported file, the task must have been opened with ``exported``.
    """
    if not isinstance(loaded, Exported):
        made: nn.Module = task.model()
        weights.load_into(made, loaded.state, source)
        return made
    if task.recipe.precision != loaded.computes:
        raise UserError(
            f"precision is '{task.recipe.precision}', but {source} computes in {loaded.computes}; remove "
            "precision"
        )
    return loaded.model()


def is_exported(loaded: Weights) -> bool:
    """Check whether the weights come from an exported file, which has no loss."""
    return isinstance(loaded, Exported)


def warnings(loaded: Weights, source: str) -> list[str]:
    """Return warnings about properties of the loaded weights that reduce scores."""
    if not isinstance(loaded, Exported) or not loaded.nms:
        return []
    return [
        f"{source} contains NMS, which drops detections with scores up to {loaded.nms:g} and lowers its AP; "
        "score a file exported without --nms"
    ]


def hints(scores: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """Return advice if a detector may have found no objects because of a high ``evaluate.confidence``."""
    usual, confidence = Evaluate.confidence, recipe.evaluate.confidence
    if scores.get("AR100") != 0 or confidence <= usual:
        return []
    return [
        f"no objects were found with evaluate.confidence={confidence:g}; use a lower value, such "
        f"as evaluate.confidence={usual:g}"
    ]
