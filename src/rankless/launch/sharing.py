"""Whether a step has a micro-batch for each of those that are to share it."""

from __future__ import annotations

from collections.abc import Sequence

from rankless.errors import UserError, counted
from rankless.recipe.schema import Recipe


def too_few(ranks: int, devices: int, kind: str) -> str:
    """The note where only ``ranks`` of all ``devices`` of a ``kind`` (plural) have a micro-batch each."""
    return (
        f"a step has only {counted(ranks, 'micro-batch', 'micro-batches')} (batch.images / batch.micro), so "
        f"only {ranks} of the {devices} {kind} will train"
    )


def refuse_idle(asked: str, counts: Sequence[int], recipe: Recipe) -> None:
    """Raise where some devices or hosts would have nothing to compute.

    Args:
        asked: what the user asked for, with ``{}`` in the place of the numbers.
        counts: each a number of those that are to share a step.
        recipe: what they train.
    """
    most = recipe.batch.micro_batches
    if over := [str(count) for count in counts if count > most]:
        raise UserError(
            f"{asked.format(', '.join(over))}, but a step has only "
            f"{counted(most, 'micro-batch', 'micro-batches')} to share (batch.images / batch.micro): "
            f"use at most {most}, a larger batch.images or a smaller batch.micro"
        )
