"""Errors for training steps that cannot be applied."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rankless.engine.totals import Numbers
from rankless.errors import UserError, counted
from rankless.recipe.schema import Recipe

SMALLEST_SCALE = 2.0**-14
"""Minimum loss scale for fp16, reached from the initial 65,536 after 30 consecutive overflows."""
_SHOWN = 5


class DivergedError(UserError):
    """Raised on every rank if a step cannot be applied or weights cannot be saved.

    If ``is_whole``, the state is the same as before the step and can be saved. If ``repeats``, a resumed run
    would fail in the same way.
    """

    def __init__(self, errors: str | Iterable[str], *, is_whole: bool, repeats: bool) -> None:
        super().__init__(errors)
        self.is_whole, self.repeats = is_whole, repeats


def not_used(step: int, unused: Sequence[tuple[int, Sequence[str]]]) -> str:
    """Return an error message about micro-batches whose loss does not depend on some parameters.

    ``step`` is counted from 1. ``unused`` contains pairs of a micro-batch and its unused parameters.
    """
    leaf, names = unused[0]
    more = f" (and {counted(len(unused) - 1, 'other')})" if len(unused) > 1 else ""
    return (
        f"step {step}: the loss of micro-batch {leaf}{more} does not depend on {several(names)}; use "
        "these parameters in every forward pass, set their requires_grad to False, or set "
        "find_unused_parameters: true to count missing gradients as zero"
    )


def not_finite(step: int, numbers: Numbers, bad: Sequence[str], recipe: Recipe, scale: float) -> str:
    """Return an error message about a non-finite loss, or non-finite gradients of the parameters ``bad``.

    ``step`` is counted from 1. ``scale`` is the loss scale for fp16.
    """
    if not math.isfinite(numbers.loss):
        what = f"the loss became {numbers.mean_loss}"
    elif bad:
        what = f"the loss is {numbers.mean_loss:g}, but the gradient of {several(bad)} is not finite"
    else:
        what = f"the loss is {numbers.mean_loss:g}, but the gradient's norm is too large to compute"
    if recipe.precision == "fp16":
        what += f" (loss scale {scale:g})"
    return f"step {step} was not applied, because {what}; {_advice(recipe)}"


def weights_not_finite(step: int, bad: Sequence[str], recipe: Recipe) -> str:
    """Return an error message about weights or running statistics that are not finite."""
    when = f"after step {step}" if step else "at the start of the run"
    return f"the weights {several(bad)} are not finite {when} and were not saved; {_advice(recipe)}"


def _advice(recipe: Recipe) -> str:
    tries = [f"lower optim.lr (now {recipe.optim.lr:g})", "lengthen schedule.warmup"]
    tries.append(f"lower optim.clip (now {recipe.optim.clip:g})" if recipe.optim.clip else "set optim.clip")
    if recipe.precision in ("fp16", "bf16"):
        tries.append("use precision: fp32")
    look = "check the labels and look for roots or logarithms of zero, or divisions by zero, in the loss"
    return f"{', '.join(tries)}, or {look}"


def several(names: Sequence[str]) -> str:
    """Return the first names in quotes, and the number of the others."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + more
