"""What may change between a run and its resumption."""

from __future__ import annotations

import json
from dataclasses import replace

from rankless.errors import UserError
from rankless.recipe import Recipe
from rankless.recipe_file import differences, load
from rankless.run_directory import RunDirectory

# Nothing here changes a number that was computed already.
FREE = (
    "epochs",
    "workers",
    "data.cache",
    "data.max_bad",
    "evaluate.every",
    "checkpoint.every",
    "checkpoint.keep",
)


def check_resume(run: RunDirectory, recipe: Recipe) -> Recipe:
    """The recipe to go on with.

    Args:
        run: started before.
        recipe: what is asked for now.

    Raises:
        UserError: something that decides past numbers differs; every such key is named with both values.
    """
    before = load(run.recipe)
    if recipe.precision == "auto":
        # What it meant is written down with the run; another machine must not change it.
        recipe = replace(recipe, precision=before.precision)
    changed = [(key, old, new) for key, old, new in differences(before, recipe) if key not in FREE]
    if changed:
        listed = [f"{key}: {old} in the run, {new} now" for key, old, new in changed]
        raise UserError(
            [
                f"{run.path} cannot go on with another recipe; {len(changed)} "
                f"{'keys differ' if len(changed) > 1 else 'key differs'}:",
                *listed,
                f"leave them as they were, or start anew; what may change: {', '.join(FREE)}",
            ]
        )
    _refuse_the_past(run, recipe)
    return recipe


def _refuse_the_past(run: RunDirectory, recipe: Recipe) -> None:
    """Raise if the recipe ends before the step that the run has reached."""
    step = run.pointed("last")
    try:
        state = json.loads((run.step_directory(step or 0) / "state.json").read_text(encoding="utf-8"))
        pictures = int(state["pictures"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # whether a checkpoint is whole is for those to say who load it
    steps = -(-recipe.epochs * pictures // recipe.batch.images)
    if step and steps < step:
        raise UserError(
            f"{run.path} has done {step} steps, which is epoch {step * recipe.batch.images / pictures:.2f}; "
            f"'epochs' is {recipe.epochs}, which ends after step {steps}: expected more epochs than are done"
        )
