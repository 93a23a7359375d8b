"""Tasks: a model, a loss, a decode and a metric each; the engine knows only their protocol."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from rankless.errors import UserError
from rankless.recipe import Recipe
from rankless.tasks.protocol import Task


def open_task(recipe: Recipe) -> Task:
    """The task that ``recipe.task`` names: ``detect``, ``classify``, or a user's ``package.module:Class``.

    Raises:
        UserError: no such task, module or class.
    """
    if recipe.task == "detect":
        from rankless.tasks.detect import Detect

        return Detect(recipe)
    if recipe.task == "classify":
        from rankless.tasks.classify import Classify

        return Classify(recipe)
    module_name, _, class_name = recipe.task.partition(":")
    if not class_name:
        raise UserError(
            f"task is '{recipe.task}': expected 'detect', 'classify', or 'package.module:Class' "
            "for a task of your own"
        )
    here = str(Path.cwd())
    if here not in sys.path:  # as with `python -m`: a user's module stands where the command is given
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"task is '{recipe.task}': the module '{module_name}' cannot be imported ({error}); "
            "run from the folder that holds it, or install it"
        ) from error
    made = getattr(module, class_name, None)
    if made is None:
        raise UserError(f"task is '{recipe.task}': the module '{module_name}' has no '{class_name}'")
    task: Task = made(recipe)
    return task


def settled(recipe: Recipe) -> Recipe:
    """The recipe with nothing left that only this machine or the data can say, so that a run stands alone.

    Raises:
        UserError: a faulty cfg, or data that cannot be opened.
    """
    if recipe.task == "detect":
        from rankless.tasks.detect import settled_detection

        return settled_detection(recipe)
    return recipe
