"""The loss on the evaluation data, with the same bits for any number of ranks.

A task with such a loss sets its attribute ``validation_loss``. The sum and count of a batch do not depend on
the number of ranks, and they are added exactly, so the order of the batches does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from rankless.tasks.capabilities import unreadable_in
from rankless.tasks.checks import check_loss
from rankless.tasks.protocol import Task


def has_loss(task: Task) -> bool:
    """Check whether evaluations compute the task's ``loss``."""
    return getattr(task, "validation_loss", False) is True


class FirstOutput:
    """Keeps a model's first output, so that ``predict`` and ``loss`` can share one forward pass."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._seen: tuple[Tensor, Any] | None = None

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return the model's output, or the stored output if the input equals the first one."""
        if len(inputs) != 1 or options or not isinstance(inputs[0], Tensor):
            return self._model(*inputs, **options)
        images = inputs[0]
        if self._seen is None:
            self._seen = images, self._model(images)
            return self._seen[1]
        first, output = self._seen
        same = first.shape == images.shape and first.dtype == images.dtype
        return output if first is images or (same and first.equal(images)) else self._model(images)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def batch_loss(
    task: Task, model: Any, batch: Any, computing: AbstractContextManager[object]
) -> tuple[float, float]:
    """Return the sum and count of the loss over a batch's readable images.

    The loss is computed in the context ``computing``, which disables gradients and seeds random numbers
    (Faster R-CNN selects samples at random).
    """
    if unreadable_in(batch):
        readable = getattr(batch, "readable", None)
        batch = readable() if callable(readable) else None
        if batch is None:
            return 0.0, 0.0
    with computing:
        loss = task.loss(model, batch)
        check_loss(task, loss)
    return float(loss.sum), float(loss.count)


def mean(losses: Iterable[tuple[float, float]]) -> float | None:
    """Return the mean loss of all batches, or None if it is not finite or all counts are zero."""
    sums, counts = zip(*losses, strict=True)
    if not all(map(math.isfinite, (*sums, *counts))) or not (count := math.fsum(counts)):
        return None
    return math.fsum(sums) / count
