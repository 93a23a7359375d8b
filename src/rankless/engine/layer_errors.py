"""Convert PyTorch errors that are caused by a recipe to user errors that name the layer and a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import TracebackType

from torch import nn

from rankless.errors import OneValueError, UserError
from rankless.hardware.shortages import no_hidden_shortage
from rankless.recipe.schema import Recipe

_NOT_DETERMINISTIC = " does not have a deterministic implementation"
_ONE_VALUE = "Expected more than 1 value per channel when training"


@contextmanager
def explained(recipe: Recipe) -> Iterator[None]:
    """Convert PyTorch errors in this block that are caused by ``recipe`` to user errors.

    With ``reduce: exact``, also raise an error if PyTorch hides that the GPU is out of memory.
    """
    try:
        with no_hidden_shortage() if recipe.reduce == "exact" else nullcontext():
            yield
    except (RuntimeError, ValueError) as error:
        text = str(error)
        if _NOT_DETERMINISTIC in text:
            operation = text.split(_NOT_DETERMINISTIC)[0].split()[-1]
            where = _layer(error.__traceback__) or "the backward pass"
            raise UserError(
                f"{where} uses {operation}, which has no deterministic implementation on this device; use "
                "another layer or operation, or set reduce: fast, without a guarantee of identical weights"
            ) from error
        if text.startswith(_ONE_VALUE):
            where = _layer(error.__traceback__) or "a batch norm"
            raise OneValueError(
                f"{where} gets only one value per channel (batch.micro is {recipe.batch.micro}), so its "
                "variance is undefined; use a larger batch.micro or model.image_size, or set batch_norm to "
                "sync or frozen"
            ) from error
        raise


def _layer(traceback: TracebackType | None) -> str:
    """Return the name and type of the innermost module that raised an error, or an empty string."""
    modules: list[nn.Module] = []
    while traceback is not None:
        owner = traceback.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            modules.append(owner)
        traceback = traceback.tb_next
    if not modules:
        return ""
    names = {id(module): name for name, module in modules[0].named_modules()}
    name = names.get(id(modules[-1]), "")
    kind = type(modules[-1]).__name__
    return f"the layer '{name}' ({kind})" if name else f"the model ({kind})"
