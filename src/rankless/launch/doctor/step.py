"""What a step of a recipe is on one host: how many gradients, how many seconds."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from rankless.errors import UserError
from rankless.launch import local
from rankless.recipe.schema import Recipe
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.tasks import open_task, resolve_recipe

_STEPS, _WARM_UP = 5, 2


def parameters(recipe: Recipe) -> int:
    """How many numbers a training of the recipe exchanges in every step.

    Raises:
        UserError: the model or its data cannot be opened.
    """
    model = open_task(resolve_recipe(recipe)).model()
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def seconds(recipe: Recipe, devices: int) -> float:
    """Train some steps; nothing stays.

    Args:
        recipe: any.
        devices: ranks that share it.

    Returns:
        Of a step, the median.

    Raises:
        UserError: whatever keeps the recipe from training.
    """
    with tempfile.TemporaryDirectory(prefix="rankless-doctor-") as folder:
        run = RunDirectory(Path(folder) / "run")
        code = local.train(recipe, run.path, devices=devices, dry_run_steps=_STEPS)
        entries = [entry for entry in journal.read(run.journal) if "step" in entry]
        if code or not entries:
            raise UserError(f"the first steps of the recipe did not get to the end (code {code})")
        times = [entry["timing"]["seconds"] for entry in entries]
    return float(statistics.median(times[_WARM_UP:] or times))
