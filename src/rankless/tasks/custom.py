"""Custom tasks, and the code of the user's own that a recipe names."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rankless.errors import UserError, printable
from rankless.recipe.model_kinds import FamilyModel
from rankless.recipe.schema import Recipe, is_own_format
from rankless.task_kinds import BUILT_IN
from rankless.tasks.checks import check_members
from rankless.tasks.protocol import Task
from rankless.user_modules import absolute, load_class, opening

_WHAT = {"task": "custom task", "model.name": "detector family", "data.format": "data format"}


def open_custom(recipe: Recipe, _: Sequence[str] | None = None, *, exported: bool = False) -> Task:
    """Open the custom task that ``recipe.task`` names, which defines its own class names."""
    made = load_class(recipe.task, "task")
    check_members(made, recipe.task)
    with opening():
        task: Task = made(recipe)
    return task


def with_absolute_names(recipe: Recipe) -> Recipe:
    """Return a recipe whose names of the user's own code are valid in any working directory."""
    for key, name in own_code(recipe):
        if key == "task":
            recipe = replace(recipe, task=absolute(name))
        elif key == "model.name":
            recipe = replace(recipe, model=replace(recipe.model, name=absolute(name)))
        else:
            recipe = replace(recipe, data=replace(recipe.data, format=absolute(name)))
    return recipe


def own_code(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the keys that name code of the user's own, with the names. A custom task decides about others."""
    if recipe.task not in BUILT_IN:
        yield "task", recipe.task
        return
    if isinstance(recipe.model, FamilyModel):
        yield "model.name", recipe.model.name
    if is_own_format(recipe.data.format):
        yield "data.format", recipe.data.format


def refuse_unasked(
    recipe: Recipe,
    source: Path,
    overrides: Iterable[str] = (),
    task: type | str | None = None,
    *,
    reads_data: bool = True,
) -> None:
    """Raise an error if only a weights file names code of the user's own, because it would be run.

    ``recipe`` is the recipe in ``source``, after the user's ``overrides`` and ``task``, which may name the
    code again. The format of the data does not matter if ``reads_data`` is false.
    """
    given = {one.partition("=")[0] for one in overrides} | ({"task"} if task is not None else set())
    problems = []
    for key, name in own_code(recipe):
        if key not in given and (reads_data or key != "data.format"):
            in_python = " (in Python, task=…)" if key == "task" else ""
            problems.append(
                f"{source}: the recipe names the {_WHAT[key]} '{printable(name)}'; if you trust its code, "
                f"add {naming(key, name)}{in_python}"
            )
    if problems:
        raise UserError(problems)


def naming(key: str, name: str) -> str:
    """Return the words of a command line that name the user's own code."""
    quoted = shlex.quote(printable(name))
    return f"--task {quoted}" if key == "task" else f"{key}={quoted}"
