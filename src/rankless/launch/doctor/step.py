"""How long a step of a recipe takes on one host: some steps of a training that leaves nothing behind."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from rankless.errors import UserError
from rankless.launch import local
from rankless.recipe.schema import Recipe
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.tasks import open_task, resolve_recipe

_STEPS, _WARM_UP = 5, 2


def measured(recipe: Recipe, devices: int) -> dict[str, Any]:
    """Train some steps.

    Args:
        recipe: any.
        devices: ranks that share it.

    Returns:
        ``seconds`` of a step, the median; and how many ``parameters`` are trained.

    Raises:
        UserError: whatever keeps the recipe from training.
    """
    resolved = resolve_recipe(recipe)
    parameters = sum(p.numel() for p in open_task(resolved).model().parameters() if p.requires_grad)
    with tempfile.TemporaryDirectory(prefix="rankless-doctor-") as folder:
        run = RunDirectory(Path(folder) / "run")
        code = local.train(resolved, run.path, devices=devices, dry_run_steps=_STEPS)
        entries = [entry for entry in journal.read(run.journal) if "step" in entry]
        if code or not entries:
            raise UserError(f"the first steps of the recipe did not get to the end (code {code})")
        seconds = [entry["timing"]["seconds"] for entry in entries]
    return {"seconds": statistics.median(seconds[_WARM_UP:] or seconds), "parameters": parameters}
