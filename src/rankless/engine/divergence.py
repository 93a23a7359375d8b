"""Errors about training steps that cannot be applied."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rankless.engine.totals import Numbers
from rankless.errors import UserError
from rankless.recipe.schema import Recipe

SMALLEST_SCALE = 2.0**-14
"""Smallest loss scale of fp16. It begins at 65,536, and thirty overflows in a row halve it to this."""
_SHOWN = 5


class DivergedError(UserError):
    """Raised on every rank if a step cannot be applied or weights cannot be saved.

    Args:
        errors: one sentence, or several.
        is_whole: whether the state is intact, as before the step, and can be saved.
        repeats: whether a resumed run would fail in the same way.
    """

    def __init__(self, errors: str | Iterable[str], *, is_whole: bool, repeats: bool) -> None:
        super().__init__(errors)
        self.is_whole, self.repeats = is_whole, repeats


def not_used(step: int, unused: Sequence[tuple[int, Sequence[str]]]) -> str:
    """Describe the micro-batches (from 0) whose loss does not depend on the named parameters.

    ``step`` counts from 1.
    """
    leaf, names = unused[0]
    more = f" (and {len(unused) - 1} more micro-batches)" if len(unused) > 1 else ""
    return (
        f"step {step}: the loss of micro-batch {leaf}{more} does not depend on {_several(names)}; use "
        "every trainable parameter in every forward pass, set its requires_grad to False, or count missing "
        "gradients as zero with find_unused_parameters: true"
    )


def not_finite(step: int, numbers: Numbers, bad: Sequence[str], recipe: Recipe, scale: float) -> str:
    """Describe a loss that is not finite, or the parameters ``bad`` whose gradients are not finite.

    ``step`` counts from 1; ``scale`` is fp16's loss scale.
    """
    if not math.isfinite(numbers.loss):
        what = f"the loss became {numbers.mean_loss}"
    elif bad:
        what = f"the loss is {numbers.mean_loss:g}, but the gradient is not finite in {_several(bad)}"
    else:
        what = f"the loss is {numbers.mean_loss:g}, but the gradient's norm is too large to compute"
    if recipe.precision == "fp16":
        what += f" (loss scale {scale:g})"
    return f"{what} in step {step}, which was not applied: {_advice(recipe)}"


def weights_not_finite(step: int, bad: Sequence[str], recipe: Recipe) -> str:
    """Describe weights or running statistics that are not finite after ``step`` steps."""
    when = f"after step {step}" if step else "at the start"
    return f"the weights are not finite {when}, in {_several(bad)}, and were not saved: {_advice(recipe)}"


def _advice(recipe: Recipe) -> str:
    tries = [f"lower optim.lr (now {recipe.optim.lr:g})", "lengthen schedule.warmup"]
    tries.append(f"lower optim.clip (now {recipe.optim.clip:g})" if recipe.optim.clip else "set optim.clip")
    if recipe.precision in ("fp16", "bf16"):
        tries.append("use precision: fp32")
    look = "check the labels, and check the loss for roots or logarithms of zero and divisions by zero"
    return f"{', '.join(tries)}, or {look}"


def _several(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + more
