"""The search space, which maps recipe keys to ranges of numbers or to choices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rankless.errors import UserError
from rankless.recipe.keys import at
from rankless.recipe.schema import Recipe
from rankless.task_kinds import kind_of

AUGMENTATION = "augmentation"
"""A factor that scales all :data:`_STRENGTHS` that the recipe uses; it is not a recipe key."""
# Keys and their maxima.
_STRENGTHS = {"hue": 0.5, "saturation": 4.0, "value": 4.0, "scale": 4.0, "translate": 0.9}
_TENFOLD = 10.0  # smallest ratio high / low for a logarithmic scale


@dataclass(frozen=True)
class Range:
    """The possible values of one key."""

    low: float | None = None  # inclusive, as is ``high``; both are None for choices
    high: float | None = None
    choices: tuple[str, ...] = ()  # as written in key=value
    whole: bool = False  # tries only integers

    @property
    def is_logarithmic(self) -> bool:
        """Whether values are sampled on a logarithmic scale."""
        return bool(self.low and self.high) and float(self.high or 0) / float(self.low or 1) >= _TENFOLD

    def text(self) -> str:
        """Return the range in the syntax of ``--search``."""
        return "|".join(self.choices) if self.choices else f"{self.low:g}..{self.high:g}"


Space = Mapping[str, Range]


def parsed(texts: Iterable[str]) -> dict[str, Range]:
    """Parse texts such as ``key=low..high`` and ``key=a|b|c``, and return the ranges by key."""
    found = {text: _range(text) for text in texts}
    if problems := [text for text, one in found.items() if one is None]:
        raise UserError(
            f"--search is '{text}': expected a range or choices, such as optim.lr=0.001..0.1 or "
            "'data.augment=none|light|heavy'"
            for text in problems
        )
    return {text.partition("=")[0]: one for text, one in found.items() if one is not None}


def _range(text: str) -> Range | None:
    key, _, given = text.partition("=")
    low, dots, high = given.partition("..")
    if not dots:
        choices = tuple(dict.fromkeys(one.strip() for one in given.split("|") if one.strip()))
        return Range(choices=choices) if key and len(choices) > 1 else None
    try:
        first, last = float(low), float(high)
    except ValueError:
        return None
    is_range = bool(key) and math.isfinite(first) and math.isfinite(last) and first < last
    return Range(first, last, whole=low.isdecimal() and high.isdecimal()) if is_range else None


def usual(recipe: Recipe) -> dict[str, Range]:
    """Return the default search space: learning rate, weight decay, augmentation and loss weights."""
    decay = recipe.optim.weight_decay
    space = {
        "optim.lr": Range(recipe.optim.lr / 10, recipe.optim.lr * 10),
        "optim.weight_decay": Range(decay / 10, decay * 10) if decay else Range(1e-6, 1e-2),
    }
    if any(getattr(recipe.data.augment, key) for key in _STRENGTHS):
        space[AUGMENTATION] = Range(0.0, 2.0)
    weights = kind_of(recipe.task).loss_weights
    for key in weights:
        now = getattr(recipe.loss, key, None)
        # Published box weights differ between networks; the other weights are about 1.
        base = now if isinstance(now, float) else 1.0 if now == "auto" and key != "box" else 0.0
        if base:
            space[f"loss.{key}"] = Range(base / 4, base * 4)
    if not weights and hasattr(recipe.loss, "smoothing"):
        space["loss.smoothing"] = Range(0.0, 0.2)
    return space


def overrides(params: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """Return a trial's recipe changes as ``key=value``, with augmentation relative to ``recipe``."""
    changes = []
    for key, value in params.items():
        if key != AUGMENTATION:
            changes.append(f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}")
            continue
        for name, most in _STRENGTHS.items():
            if now := getattr(recipe.data.augment, name):
                changes.append(f"data.augment.{name}={min(now * value, most):.4g}")
    return changes


def of_recipe(recipe: Recipe, space: Space) -> dict[str, Any]:
    """Return the values in the recipe that are within the search space."""
    found: dict[str, Any] = {}
    for key, one in space.items():
        value: Any = 1.0 if key == AUGMENTATION else at(recipe, (*key.split("."),))
        if value == "auto" and key.startswith("loss."):
            value = 1.0
        is_number = isinstance(value, float | int) and not isinstance(value, bool)
        if is_number and one.low is not None and one.low <= value <= float(one.high or 0):
            found[key] = int(value) if one.whole else float(value)
        elif str(value) in one.choices:
            found[key] = str(value)
    return found
