"""Trained models for their tasks, from weights files and from exported files alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from rankless.errors import UserError
from rankless.models.checkpoints import weights
from rankless.models.checkpoints.weights import Weights
from rankless.models.exported import loading
from rankless.models.exported.loading import Exported


def load(path: Path) -> Weights:
    """Read a weights file or an exported file."""
    return loading.load(path) if loading.is_exported(path) else weights.load(path)


def model(task: Any, loaded: Weights, source: str) -> nn.Module:
    """Return the task's model with the loaded weights, on the CPU.

    Args:
        task: of the recipe of ``loaded``; one of an exported classifier leaves the normalization to the file.
        loaded: of :func:`load`.
        source: its file, for messages.
    """
    if not isinstance(loaded, Exported):
        made: nn.Module = task.model()
        weights.load_into(made, loaded.state, source)
        return made
    if task.recipe.precision != loaded.computes:
        raise UserError(
            f"precision is '{task.recipe.precision}', but {source} computes in {loaded.computes}; leave it "
            "out"
        )
    prepare(task)
    return loaded.model()


def warnings(loaded: Weights, source: str) -> list[str]:
    """Sentences on properties of the loaded weights that lower the scores."""
    if not isinstance(loaded, Exported) or not loaded.nms:
        return []
    return [
        f"{source} has NMS inside, which leaves out what scores no more than {loaded.nms:g}: its AP is lower "
        "than that of the weights; score an export without --nms"
    ]


def prepare(task: Any) -> None:
    """Have a built-in task predict with an exported file, which normalizes images itself and has no loss."""
    if hasattr(task, "mean"):  # a classifier's
        task.mean, task.std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    task.validation_loss = False
