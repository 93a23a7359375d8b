"""What a step of a recipe is on one host: how many gradients, how many seconds."""

from __future__ import annotations

import statistics

from rankless.launch import local
from rankless.recipe.schema import Recipe
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
    """Return the seconds of a step, the median of some, with so many ranks.

    Raises:
        UserError: whatever keeps the recipe from training.
    """
    return float(statistics.median(local.step_seconds(recipe, devices, _STEPS, _WARM_UP)))
