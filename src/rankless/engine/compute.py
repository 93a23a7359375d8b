"""The computation of one micro-batch: seeds, precision, forward pass and loss.

This is the place to replace how a micro-batch is computed. The accumulators only add results along the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from rankless.engine.compiled import Compiled
from rankless.engine.divergence import several
from rankless.engine.running_statistics import RunningStatistics
from rankless.engine.shared_process import OwnGenerator, autocast_for, undrawn
from rankless.errors import UserError
from rankless.randomness import seed_generators, torch_seed
from rankless.recipe.schema import Recipe
from rankless.structures import LossSum, Unreadable
from rankless.tasks.capabilities import unreadable_in
from rankless.tasks.checks import check_batch, check_leaves, check_loss
from rankless.tasks.protocol import Task
from rankless.world.process_group import World


class Compute:
    """Computes the losses of micro-batches, and their gradients.

    Args:
        model: the model, on the rank's device and with its backbone frozen if necessary.
        owns_all: whether the loss may depend on no other parameters than those of the model.
        side_by_side: whether this rank's micro-batches run at the same time (``batch_norm: sync``).
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        statistics: RunningStatistics,
        recipe: Recipe,
        world: World,
        *,
        owns_all: bool = True,
        side_by_side: bool = False,
    ) -> None:
        self.task, self.model, self.statistics, self.recipe = task, model, statistics, recipe
        self.device, self.in_threads = world.device, world.transport.in_process
        self.autocast = autocast_for(shared=self.in_threads or side_by_side)
        self.undrawn: Callable[[], AbstractContextManager[None]] = nullcontext
        if side_by_side:
            self.undrawn = partial(undrawn, "batch_norm is 'sync'", "batch_norm: micro")
        elif self.in_threads:
            self.undrawn = partial(undrawn, "ranks are threads", "ranks that are processes")
        self.owns_all, self.is_checked = owns_all, not owns_all
        self.called = model
        self.compiled: Callable[[], AbstractContextManager[None]] = nullcontext
        if recipe.compute == "compiled":
            made = Compiled(model)
            self.called, self.compiled = made.model, made.checked

    def draw(self, batches: Iterator[Any]) -> tuple[Any, Sequence[Unreadable]]:
        """Return the next batch on this rank's device, and its images that could not be read."""
        batch = next(batches)
        check_batch(self.task, batch)
        return batch.to(self.device), unreadable_in(batch)

    def __call__(self, batch: Any, step: int, leaf: int, backward: Callable[[LossSum], None]) -> None:
        """Run the forward pass of micro-batch ``leaf`` of a step, and then ``backward`` with its loss."""
        with self.undrawn(), self.compiled():
            self.statistics.begin_micro_batch()
            backward(self.loss(self.called, batch, step, leaf))

    def loss(self, model: nn.Module, batch: Any, step: int, leaf: int) -> LossSum:
        """Return the task's loss with detached counts and parts; ``model`` may be a copy of the model."""
        with self._seeded(step, leaf), self.autocast(self.recipe.precision, self.device):
            loss = self.task.loss(model, batch)
            check_loss(self.task, loss)
        if not self.is_checked:
            check_leaves(self.task, model, loss.sum)
            self.is_checked = True
        parts = {name: part.detach() for name, part in loss.parts.items()}
        return LossSum(loss.sum, loss.count.detach(), parts)

    def keep(self, leaf: int | None) -> bool:
        """Keep what a micro-batch's forward pass has changed, and return whether any of it is new."""
        new = self.statistics.keep(leaf)
        if new and self.recipe.model.checkpointing:
            raise UserError(
                f"model.checkpointing is true, but the forward pass changes {several(new)}, so a block that "
                "is computed again would use other values; remove model.checkpointing"
            )
        return bool(new)

    def _seeded(self, step: int, leaf: int) -> AbstractContextManager[object]:
        """Seed the generators of the CPU and this device for a micro-batch."""
        path = self.recipe.seed, "dropout", step, leaf
        if self.device.type == "cuda":
            torch.cuda.manual_seed(torch_seed(*path))
        if self.in_threads:
            return OwnGenerator(torch_seed(*path))
        if self.undrawn is nullcontext:
            seed_generators(*path)
        else:
            torch.default_generator.manual_seed(torch_seed(*path))
        return nullcontext()
