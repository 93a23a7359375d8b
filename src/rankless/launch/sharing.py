"""Check that each device that shares a step has at least one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

from rankless.errors import UserError, counted
from rankless.recipe.schema import Recipe


def too_few(ranks: int, devices: int, kind: str) -> str:
    """Return a message saying that a step has too few micro-batches for ``devices`` devices."""
    return (
        f"a step has only {counted(ranks, 'micro-batch', 'micro-batches')} (batch.images / batch.micro), so "
        f"only {ranks} of the {devices} {kind} will train"
    )


def refuse_idle(option: str, counts: Sequence[int], recipe: Recipe) -> None:
    """Raise a UserError if any of ``counts`` exceeds the number of micro-batches per step."""
    most = recipe.batch.micro_batches
    if over := [str(count) for count in counts if count > most]:
        raise UserError(
            f"{option.format(', '.join(over))}, but a step has only "
            f"{counted(most, 'micro-batch', 'micro-batches')} (batch.images / batch.micro); use at most "
            f"{most}, a larger batch.images or a smaller batch.micro"
        )
