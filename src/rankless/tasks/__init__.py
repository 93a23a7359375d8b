"""Tasks: a model, a loss, a decode and a metric each; the engine knows only their protocol."""

from __future__ import annotations

from rankless.recipe import Recipe
from rankless.tasks.own import open_own
from rankless.tasks.protocol import Task


def open_task(recipe: Recipe) -> Task:
    """The task that ``recipe.task`` names: ``detect``, ``classify``, or one of the user's own.

    The last are in :mod:`rankless.tasks.own`.

    Raises:
        UserError: no such task, file, module or class.
    """
    if recipe.task == "detect":
        from rankless.tasks.detect import Detect

        return Detect(recipe)
    if recipe.task == "classify":
        from rankless.tasks.classify import Classify

        return Classify(recipe)
    return open_own(recipe)


def settled(recipe: Recipe) -> Recipe:
    """The recipe with nothing left that only this machine or the data can say, so that a run stands alone.

    Raises:
        UserError: a faulty cfg, or data that cannot be opened.
    """
    if recipe.task == "detect":
        from rankless.tasks.detect import Detect, settled_detection

        Detect(recipe, class_names=())  # the faults that need no data are told here and now
        return settled_detection(recipe)
    if recipe.task == "classify":
        from rankless.tasks.classify import Classify

        Classify(recipe, class_names=())
    return recipe
