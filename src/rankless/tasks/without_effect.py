"""Settings that another task knows: asked for here, they would do nothing, so they are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Literal

from rankless.errors import UserError
from rankless.recipe.schema import Recipe

_DETECTION = (
    "data.fit",
    "data.multi_scale",
    "data.multi_scale_every",
    "data.train_images",
    "data.val_images",
    "data.augment.mosaic",
    "data.augment.partners",
    "data.augment.copy_paste",
    "evaluate.confidence",
    "evaluate.nms",
    "evaluate.iou",
    "evaluate.class_agnostic",
    "evaluate.multi_label",
    "evaluate.detections",
    "evaluate.rectangular",
)
_CLASSIFICATION = ("data.augment.policy", "data.augment.erase", "data.augment.cutmix")

_FOREIGN = {"detect": ("classification", _CLASSIFICATION), "classify": ("detection", _DETECTION)}


def refuse_without_effect(
    recipe: Recipe, task: Literal["detect", "classify"], others: Sequence[str] = ()
) -> None:
    """Raise if anything is set, to other than its default, that the task does not know.

    Args:
        recipe: the whole recipe.
        task: the task that reads it.
        others: faults found elsewhere, to be told with these.

    Raises:
        UserError: every such setting, and ``others``.
    """
    owner, keys = _FOREIGN[task]
    faults = [
        f"{key} is {_shown(_value(recipe, key))}, which only {owner} knows: leave it out."
        for key in keys
        if _value(recipe, key) != _value(Recipe(), key)
    ]
    if task == "classify":
        faults += _of_classifiers(recipe)
    if faults or others:
        raise UserError([*faults, *others])


def _of_classifiers(recipe: Recipe) -> Iterator[str]:
    """What depends on the value, or on another setting."""
    options = recipe.data.augment
    if options.close_mosaic and not (options.mixup or options.cutmix):
        yield (
            f"data.augment.close_mosaic is {options.close_mosaic}, but neither mixup nor cutmix is on, and a "
            "mosaic is what only detection knows: leave it out."
        )
    if recipe.evaluate.tta == "full":
        yield (
            "evaluate.tta is 'full', which only detection knows: many classifiers take one size alone; "
            "give 'flip', or leave it out."
        )


def _value(recipe: Recipe, key: str) -> Any:
    return reduce(getattr, key.split("."), recipe)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value).lower() if value is True else str(value)
