"""Check a run before it is resumed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rankless.engine.schedule import StepSchedule, rate
from rankless.errors import UserError, counted
from rankless.models.weights_files import weights
from rankless.printing import warn
from rankless.recipe.load import changed, deciding, free_keys, is_cut, load
from rankless.recipe.schema import Recipe
from rankless.runs import journal, starts
from rankless.runs.directory import RunDirectory, damage, read_state, weights_of
from rankless.tasks import data_digest

_ROOT = "data.root"  # may change if the data is the same


def check_resume(run: RunDirectory, recipe: Recipe) -> Recipe:
    """Return the recipe for resuming a run; raise a UserError if keys that affect past results differ."""
    before = _recipe_in_checkpoint(run, recipe) or recipe_of_run(run)
    if recipe.precision == "auto":
        # Keep the run's precision, because ``auto`` may mean a different one on this machine.
        recipe = replace(recipe, precision=before.precision)
    different = deciding(before, recipe)
    if [key for key, _, _ in different] == [_ROOT]:
        _refuse_other_data(run, before, recipe)
    elif different:
        # Omit keys that only one recipe has; naming the task, network or loss to which they belong is enough.
        both = [one for one in different if one[1] is not None and one[2] is not None] or different
        listed = [f"{key}: {old} in the run, {new} now" for key, old, new in both]
        raise UserError(
            [
                f"{run.path} cannot continue with another recipe; "
                f"{counted(len(both), 'key differs', 'keys differ')}:",
                *listed,
                "restore the run's values, or start a new run; a resumed run can change only "
                f"{', '.join(free_keys())}, and {_ROOT} if the data is the same",
            ]
        )
    _refuse_fewer_steps(run, recipe)
    _warn_of_rising_rate(run, before, recipe)
    return recipe


def recipe_of_run(
    run: RunDirectory, overrides: Sequence[str] = (), warn: Callable[[str], None] = warn
) -> Recipe:
    """Return a run's recipe with ``overrides`` applied.

    If ``recipe.yaml`` is damaged or missing, call ``warn`` and use the recipe in the newest checkpoint.
    """
    problem = _damage(run)
    if not problem:
        return load(run.recipe, overrides)
    saved = _recipe_in_checkpoint(run)
    if saved is None:
        raise UserError(
            f"{run.recipe}: {problem}, and there is no complete checkpoint that contains the recipe; start a "
            "new run in another directory"
        )
    warn(f"{run.recipe}: {problem}; using the recipe in the newest checkpoint")
    return changed(saved, overrides)


def was_started_by(run: RunDirectory, job: str) -> bool:
    """Check whether a run has a checkpoint and was last started by the given job."""
    if not job or not run.steps():
        return False
    before, _ = starts.read(run.environment)
    return bool(before) and before[-1].get("job") == job


def _damage(run: RunDirectory) -> str:
    if not os.path.lexists(run.recipe):
        return "is missing"
    try:
        load(run.recipe)
    except UserError as error:
        return f"is damaged ({error.problems[0].removeprefix(f'{run.recipe}: ')})"
    return "is damaged (the end of the file is missing)" if is_cut(run.recipe) else ""


def _recipe_in_checkpoint(run: RunDirectory, expected: Recipe | None = None) -> Recipe | None:
    """Return the recipe in the newest complete checkpoint, or None if there is none.

    A checkpoint with the ``expected`` recipe need not be complete, because damage cannot produce that recipe.
    """
    for step in reversed(run.steps()):
        folder = run.step_directory(step)
        with suppress(UserError):
            recipe = weights.recipe_in(folder / "model.safetensors")
            if (expected and not deciding(recipe, expected)) or damage(folder) is None:
                return recipe
    return None


def _refuse_other_data(run: RunDirectory, before: Recipe, recipe: Recipe) -> None:
    if run.pointed("last") is None:
        return  # no step has used the data yet
    used, now = _state(run).get("data"), data_digest(recipe)
    if used is None or now is None:
        why = "it is unknown whether the data is the same"
    elif used != now:
        why = "the annotations differ"
    else:
        return
    raise UserError(
        f"{run.path} cannot continue with other data: data.root is {before.data.root} in the run, "
        f"but {recipe.data.root} now, and {why}; expected the same data; correct "
        "data.root, or use another --run"
    )


def _state(run: RunDirectory) -> dict[str, Any]:
    with suppress(UserError):
        return read_state(run.step_directory(run.pointed("last") or 0))
    return {}


def finished_at(run: RunDirectory, recipe: Recipe) -> int | None:
    """Return the last step of a run if it is finished and undamaged, otherwise None."""
    step, repairs = run.pointed("last"), list[str]()
    if step is None or _steps(run, recipe) != step or _state(run).get("unscored") is not False:
        return None
    with suppress(UserError, OSError):
        weights_of(run.path, warn=repairs.append)
        whole = damage(run.step_directory(step)) is None and journal.ending(run.journal) is not None
        return step if whole and not repairs and not _damage(run) else None
    return None


def _steps(run: RunDirectory, recipe: Recipe) -> int | None:
    samples = _state(run).get("images")
    if type(samples) is not int or samples < 1:
        return None
    return -(-recipe.epochs * samples // recipe.batch.images)


def _refuse_fewer_steps(run: RunDirectory, recipe: Recipe) -> None:
    step, steps = run.pointed("last"), _steps(run, recipe)
    if step and steps is not None and steps < step:
        samples = _state(run)["images"]
        raise UserError(
            f"{run.path}: epochs={recipe.epochs} ends after step {steps}, but the run has already "
            f"completed {counted(step, 'step')} (epoch {step * recipe.batch.images / samples:.2f}); use "
            "more epochs"
        )


def _warn_of_rising_rate(run: RunDirectory, before: Recipe, now: Recipe) -> None:
    step, samples = run.pointed("last"), _state(run).get("images")
    if not step or type(samples) is not int or samples < 1 or before.epochs == now.epochs:
        return
    old, new = StepSchedule(before, samples), StepSchedule(now, samples)
    last, following = (now.optim.lr * rate(*at) for at in ((old, step - 1), (new, step)))
    planned = now.optim.lr * rate(old, step) if step < old.steps else 0.0
    if step < new.steps and following > 1.01 * max(last, planned):
        warn(
            f"{run.path}: with epochs={now.epochs} instead of {before.epochs}, the learning rate schedule is "
            f"stretched: the rate rises from {last:.2e} in step {step:,} to {following:.2e} in the next one"
        )
