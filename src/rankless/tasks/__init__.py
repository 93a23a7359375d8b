"""Tasks, each with a model, a loss, predictions and a metric. The engine depends only on their protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rankless.data.builtin import is_built_in
from rankless.errors import UserError, shell_word
from rankless.recipe.own_options import with_options
from rankless.recipe.schema import Data, Recipe
from rankless.task_kinds import BUILT_IN, kind_of
from rankless.tasks.capabilities import capabilities
from rankless.tasks.protocol import Task


def open_task(recipe: Recipe, class_names: Sequence[str] | None = None, *, exported: bool = False) -> Task:
    """Open the task of a recipe: ``detect``, ``classify``, or a custom one (:mod:`rankless.tasks.custom`).

    ``class_names`` are the class names of a trained model, or None to read them from the training data. A
    custom task defines its own. ``exported`` tells whether the model is in an exported file, which normalizes
    images itself and has no loss.
    """
    task: Task = kind_of(recipe.task).open(recipe, class_names, exported=exported)
    return task


def resolve_recipe(recipe: Recipe) -> Recipe:
    """Return a self-contained recipe, in which no value depends on local files or the data."""
    if recipe.task not in BUILT_IN:
        return recipe
    from rankless.tasks.memory_check import refuse_giant_step

    recipe = replace(recipe, data=_resolved_data(recipe.data))
    task: Any = open_task(recipe, ())  # reports the problems that need no data
    refuse_giant_step(recipe, task.size, task.activations)
    _read_data(recipe)
    resolved: Recipe = task.resolved()
    return resolved


def _resolved_data(data: Data) -> Data:
    """Resolve a data set's name to its folder, ``auto`` to a split, and a class file to class names."""
    from rankless.data.datasets.class_choice import class_list
    from rankless.data.datasets.open_split import split_to_train_on
    from rankless.data.datasets.torchvision_sets import located

    data = located(data)
    train = split_to_train_on(data.root, data.train, data.val, data.format)
    return replace(data, train=train, classes=class_list(data.classes, data.root) or "auto")


def split_names(recipe: Recipe) -> list[str]:
    """Return the names of the data's splits, training splits first, or nothing for a custom task."""
    from rankless.data.datasets.torchvision_sets import located
    from rankless.data.formats.registry import format_named, recognize
    from rankless.data.formats.splits import usual_order
    from rankless.files.remote import location

    if recipe.task not in BUILT_IN:
        return []
    data = located(recipe.data)
    name, _ = recognize(data.root, data.format)
    return usual_order(format_named(name).splits(location(data.root)))


def data_digest(recipe: Recipe) -> str | None:
    """Return the digest of the training data, or None if the data has none."""
    from rankless.data.datasets.open_split import opened

    if recipe.task not in BUILT_IN:
        return capabilities(open_task(recipe).training_data()).digest
    data = _resolved_data(recipe.data)
    return None if is_built_in(data.root) else opened(data, data.train).digest()


def _read_data(recipe: Recipe) -> None:
    """Read and cache the annotations before the ranks start, because only this process shows progress."""
    from rankless.data.datasets.open_split import of_another_task, opened, without_boxes

    data = recipe.data
    problems: list[str] = []
    if is_built_in(data.root) and data.options:  # it has no format of its own
        with_options(None, ("data", "options"), data.options, data.root)
    for split in dict.fromkeys((data.train, data.val)) if not is_built_in(data.root) else ():
        if split == "none":
            continue
        try:
            annotations = opened(data, split)
        except UserError as error:
            # List sentences that both splits share, such as advice, only once and last.
            problems = [one for one in problems if one not in error.problems] + [*error.problems]
            continue
        boxed, pretrained = annotations.has_boxes, recipe.model.pretrained
        if problem := of_another_task(pretrained, recipe.task, data.root, boxed=boxed):
            raise UserError([*problems, problem])
        if kind_of(recipe.task).boxes and (problem := without_boxes(data.root, split, annotations)):
            problems.append(f"{problem}; run `rankless data check {shell_word(data.root)}` for details")
    if problems:
        raise UserError(problems)
