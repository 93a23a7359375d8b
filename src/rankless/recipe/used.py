"""The recipe keys that affect the evaluation of a trained model, or its predictions."""

from __future__ import annotations

from collections.abc import Sequence

from rankless.errors import UserError, nearest, one_of
from rankless.recipe.keys import leaves
from rankless.recipe.model_kinds import FamilyModel
from rankless.recipe.schema import Recipe
from rankless.task_kinds import BUILT_IN, kind_of


def refuse_unused_in_scoring(overrides: Sequence[str], task: str) -> None:
    """Raise a UserError for overrides that affect no score. A custom task may read any key."""
    keys = _keys(overrides)
    if "task" in keys or task not in BUILT_IN:
        return
    unused = []
    for key in keys:
        path = (*key.split("."),)
        inside = [one for known, one in leaves(Recipe).items() if known[: len(path)] == path]
        if inside and not any(task in one.reads.scoring for one in inside):
            unused.append(key)
    if unused:
        raise UserError(
            f"command line: key '{key}': evaluation does not use it; remove {key}" for key in unused
        )


def refuse_unused_in_prediction(overrides: Sequence[str], recipe: Recipe) -> None:
    """Raise a UserError for overrides that affect no prediction of a model with this recipe."""
    task = recipe.task
    used = ["model.name"] if isinstance(recipe.model, FamilyModel) else []  # given again to allow its code
    used += [
        ".".join(path)
        for path, key in leaves(Recipe).items()
        if task in key.reads.predicting and task in key.tasks
    ]
    unused = [key for key in _keys(overrides) if key not in used]
    if unused:
        hints = {"evaluate.confidence": "use --confidence", **kind_of(task).not_predicted}
        raise UserError(
            f"command line: key '{key}': prediction does not use it; "
            f"{hints.get(key) or nearest(key, used)[2:] or f'expected {one_of(used)}'}"
            for key in unused
        )


def _keys(overrides: Sequence[str]) -> list[str]:
    return [override.partition("=")[0] for override in overrides]
