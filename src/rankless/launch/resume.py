"""What may change between a run and its resumption."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rankless.engine.rates import rate
from rankless.engine.schedule import StepSchedule
from rankless.errors import UserError, counted
from rankless.models.checkpoints import weights
from rankless.printing import warn
from rankless.recipe.load import changed, deciding, free_keys, is_cut, load
from rankless.recipe.schema import Recipe
from rankless.runs import journal, starts
from rankless.runs.directory import RunDirectory, damage, read_state, weights_of
from rankless.tasks import data_digest

_ROOT = "data.root"  # may change when the same data is there


def check_resume(run: RunDirectory, recipe: Recipe) -> Recipe:
    """The recipe to go on with.

    Args:
        run: started before.
        recipe: what is asked for now.

    Raises:
        UserError: something that decides past numbers differs; every such key is named with both values.
    """
    before = _recipe_in_checkpoint(run, recipe) or recipe_of_run(run)
    if recipe.precision == "auto":
        # What it meant is written down with the run; another machine must not change it.
        recipe = replace(recipe, precision=before.precision)
    different = deciding(before, recipe)
    if [key for key, _, _ in different] == [_ROOT]:
        _refuse_other_data(run, before, recipe)
    elif different:
        # A key that only one of them has follows from another task, network or loss, which is named.
        both = [one for one in different if one[1] is not None and one[2] is not None] or different
        listed = [f"{key}: {old} in the run, {new} now" for key, old, new in both]
        raise UserError(
            [
                f"{run.path} cannot go on with another recipe; "
                f"{counted(len(both), 'key differs', 'keys differ')}:",
                *listed,
                f"leave them as they were, or start a new run; what may change: {', '.join(free_keys())}, "
                f"and {_ROOT} where the same data lies",
            ]
        )
    _refuse_the_past(run, recipe)
    _warn_of_a_rise(run, before, recipe)
    return recipe


def recipe_of_run(
    run: RunDirectory, overrides: Sequence[str] = (), warn: Callable[[str], None] = warn
) -> Recipe:
    """The recipe that a run goes on with: its ``recipe.yaml``, or its checkpoint's where that is not whole.

    Args:
        run: started before.
        overrides: as for :func:`rankless.recipe.load.load`.
        warn: called with a sentence where ``recipe.yaml`` is damaged or missing.

    Raises:
        UserError: it is damaged or missing and there is no whole checkpoint; an older version wrote it; or
            errors in the overrides.
    """
    problem = _damage(run)
    if not problem:
        return load(run.recipe, overrides)
    saved = _recipe_in_checkpoint(run)
    if saved is None:
        raise UserError(
            f"{run.recipe}: {problem}, and there is no whole checkpoint to take the recipe from; "
            "start again with the recipe in another run directory"
        )
    warn(f"{run.recipe}: {problem}; going on with the recipe in the newest checkpoint")
    return changed(saved, overrides)


def was_started_by(run: RunDirectory, job: str) -> bool:
    """Check whether this job last started the run, which must have a checkpoint, and now restarts it.

    Args:
        run: the run directory, which may not exist yet.
        job: the job's name; "" if it has none, and then the answer is False.
    """
    if not job or not run.steps():
        return False
    before, _ = starts.read(run.environment)
    return bool(before) and before[-1].get("job") == job


def _damage(run: RunDirectory) -> str:
    """What is wrong with a run's ``recipe.yaml``; empty if nothing is."""
    if not os.path.lexists(run.recipe):
        return "is missing"
    try:
        load(run.recipe)
    except UserError as error:
        return f"is damaged ({error.problems[0].removeprefix(f'{run.recipe}: ')})"
    return "is damaged (its end is missing)" if is_cut(run.recipe) else ""


def _recipe_in_checkpoint(run: RunDirectory, expected: Recipe | None = None) -> Recipe | None:
    """The recipe in the newest whole checkpoint; None without one.

    Only the header of one with the ``expected`` recipe is read: damage does not make another recipe that one.
    """
    for step in reversed(run.steps()):
        folder = run.step_directory(step)
        with suppress(UserError):
            recipe = weights.recipe_in(folder / "model.safetensors")
            if (expected and not deciding(recipe, expected)) or damage(folder) is None:
                return recipe
    return None


def _refuse_other_data(run: RunDirectory, before: Recipe, recipe: Recipe) -> None:
    """Raise unless the data was only moved: the same classes, sizes and annotations at another path."""
    if run.pointed("last") is None:
        return  # nothing was trained on it yet
    used, now = _state(run).get("data"), data_digest(recipe)
    if used is None or now is None:
        why = "whether that is the same data cannot be determined"
    elif used != now:
        why = "what is annotated there differs from what the run was trained on"
    else:
        return
    raise UserError(
        f"{run.path} cannot go on with other data: data.root is {before.data.root} in the run, "
        f"{recipe.data.root} now, and {why}; expected the same data, wherever it lies: give its path, "
        "or start again in another --run"
    )


def _state(run: RunDirectory) -> dict[str, Any]:
    """The state in the newest checkpoint; whether that is whole is checked where it is loaded."""
    with suppress(UserError):
        return read_state(run.step_directory(run.pointed("last") or 0))
    return {}


def finished_at(run: RunDirectory, recipe: Recipe) -> int | None:
    """The last step of a run that has nothing left to do, and nothing to repair; None for any other."""
    step, repairs = run.pointed("last"), list[str]()
    if step is None or _steps(run, recipe) != step or _state(run).get("unscored") is not False:
        return None
    with suppress(UserError, OSError):
        weights_of(run.path, warn=repairs.append)
        whole = damage(run.step_directory(step)) is None and journal.ending(run.journal) is not None
        return step if whole and not repairs and not _damage(run) else None
    return None


def _steps(run: RunDirectory, recipe: Recipe) -> int | None:
    """How many steps the recipe asks for; None where the run has not saved yet."""
    samples = _state(run).get("images")
    if type(samples) is not int or samples < 1:
        return None
    return -(-recipe.epochs * samples // recipe.batch.images)


def _refuse_the_past(run: RunDirectory, recipe: Recipe) -> None:
    """Raise if the recipe ends before the step that the run has reached."""
    step, steps = run.pointed("last"), _steps(run, recipe)
    if step and steps is not None and steps < step:
        samples = _state(run)["images"]
        raise UserError(
            f"{run.path} has done {counted(step, 'step')}, which is epoch "
            f"{step * recipe.batch.images / samples:.2f}; "
            f"'epochs' is {recipe.epochs}, which ends after step {steps}: expected more epochs than are done"
        )


def _warn_of_a_rise(run: RunDirectory, before: Recipe, now: Recipe) -> None:
    """Warn where more epochs stretch the schedule, so that the learning rate is higher than it was to be."""
    step, samples = run.pointed("last"), _state(run).get("images")
    if not step or type(samples) is not int or samples < 1 or before.epochs == now.epochs:
        return
    old, new = StepSchedule(before, samples), StepSchedule(now, samples)
    last, following = (now.optim.lr * rate(*at) for at in ((old, step - 1), (new, step)))
    planned = now.optim.lr * rate(old, step) if step < old.steps else 0.0
    if step < new.steps and following > 1.01 * max(last, planned):
        warn(
            f"{run.path}: with epochs={now.epochs} in place of {before.epochs} the schedule of the learning "
            f"rate is stretched: from {last:.2e} in step {step:,} it rises to {following:.2e}"
        )
