"""Run the forward and backward passes of a step, and sum the gradients and counts over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankless.engine.divergence import several
from rankless.engine.shared_process import OwnGenerator, autocast_for, undrawn
from rankless.engine.statistics import RunningStatistics
from rankless.engine.totals import Compared, Flags, Totals
from rankless.errors import UserError
from rankless.randomness import seed_generators, torch_seed
from rankless.recipe.schema import Recipe
from rankless.structures import LossSum, Unreadable
from rankless.tasks.capabilities import unreadable_in
from rankless.tasks.checks import check_batch, check_leaves, check_loss
from rankless.tasks.protocol import Task
from rankless.world.bits import bit_sum, digest
from rankless.world.exchange import Exchange
from rankless.world.process_group import World
from rankless.world.reduce import GradientSum
from rankless.world.sync_norm import SideBySide, norms_over_batch


class Accumulator:
    """Computes the gradients of a step. Batch norms are frozen or use the statistics of each micro-batch.

    The model must already be on its device, with its backbone frozen if necessary. ``owns_all`` tells whether
    the loss may depend on no other parameters than those of the model.
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
    ) -> None:
        self.task, self.model, self.statistics, self.recipe = task, model, statistics, recipe
        self.device = world.device
        self.in_process = world.transport.in_process
        self.autocast = autocast_for(shared=self.in_process)
        self.undrawn: Callable[[], AbstractContextManager[None]] = nullcontext
        if self.in_process:
            self.undrawn = partial(undrawn, "ranks are threads", "ranks that are processes")
        self.exchange = Exchange(recipe.batch.micro_batches, world.rank, world.size, world.transport)
        self.mine = world.own_micro_batches(recipe.batch.micro_batches)
        self.names: list[str] | None = None
        self.gradients = GradientSum(
            model,
            self.exchange,
            exact=recipe.reduce == "exact",
            zero_unused=recipe.find_unused_parameters,
        )
        self.is_checked = not owns_all

    def run(
        self,
        step: int,
        batches: Iterator[Any],
        scale: Callable[[Tensor], Tensor],
        flags: Flags,
        compared: Compared | None = None,
    ) -> Totals:
        """Run the forward and backward passes of this rank's micro-batches, and sum the results of all ranks.

        ``scale`` is a function that scales the loss before the backward pass. If ``compared`` is given, the
        first batch is another rank's micro-batch.
        """
        leaves: list[Tensor] = []
        pending = None
        unreadable: list[Unreadable] = []
        self.gradients.begin()
        second = self._second(step, compared.other, batches, scale) if compared else None
        mine: Tensor | None = None
        for leaf in self.mine:
            batch, missing = self._draw(batches)
            unreadable += missing
            is_compared = compared is not None and leaf == compared.own
            with self.undrawn():
                loss = self._forward(step, leaf, batch)
                first = flags if leaf == self.mine.start else Flags()
                leaves.append(self._leaf(loss, first, len(missing), self._keep(leaf)))
                seen = self._seen(leaves[-1]) if is_compared else None
                if leaf == self.mine[-1]:
                    sums = self.exchange.fold(leaves)
                    pending = self.exchange.start(sums, torch.empty_like(sums[0]))
                self.gradients.backward(scale(loss.sum), leaf, apart=is_compared)
            if seen is not None and not missing:
                mine = self._with_gradients(seen)
        if pending is None:
            raise RuntimeError("this rank has no micro-batches")
        pending.combine()
        pending.finish()
        opinions = ["" if one is None else digest(one.tolist()) for one in (mine, second)]
        return self._totals(pending.result, unreadable, self.gradients.unused, opinions)

    def _forward(self, step: int, leaf: int, batch: Any) -> LossSum:
        self.statistics.begin_micro_batch()
        with self._seeded(step, leaf), self.autocast(self.recipe.precision, self.device):
            return self._loss(self.model, batch)

    def _loss(self, model: nn.Module, batch: Any) -> LossSum:
        """Return the task's loss for a batch, with its count and parts detached."""
        loss = self.task.loss(model, batch)
        check_loss(self.task, loss)
        if not self.is_checked:
            check_leaves(self.task, model, loss.sum)
            self.is_checked = True
        parts = {name: part.detach() for name, part in loss.parts.items()}
        return LossSum(loss.sum, loss.count.detach(), parts)

    def _second(
        self, step: int, leaf: int, batches: Iterator[Any], scale: Callable[[Tensor], Tensor]
    ) -> Tensor | None:
        """Return the bit sums of another rank's micro-batch, or None if any of its images is missing."""
        batch, missing = self._draw(batches)
        loss = self._forward(step, leaf, batch)
        seen = self._seen(self._leaf(loss, Flags(), len(missing), self._keep(None)))
        self.gradients.backward(scale(loss.sum), None, apart=True)
        return None if missing else self._with_gradients(seen)

    @staticmethod
    def _seen(leaf: Tensor) -> Tensor:
        """Return the bit sum of a micro-batch's contribution to the totals, excluding the flags."""
        return bit_sum(torch.cat([leaf[:2], leaf[6:]]))

    def _with_gradients(self, seen: Tensor) -> Tensor:
        """Return ``seen`` followed by the bit sums of the gradients of all P parameters, (1 + P,)."""
        bits = self.gradients.bits
        return torch.stack([seen, *(bits[number] for number in sorted(bits))])

    def _draw(self, batches: Iterator[Any]) -> tuple[Any, Sequence[Unreadable]]:
        batch = next(batches)
        check_batch(self.task, batch)
        return batch.to(self.device), unreadable_in(batch)

    def _seeded(self, step: int, leaf: int) -> AbstractContextManager[object]:
        """Seed the generators of the CPU and this device for a micro-batch."""
        path = self.recipe.seed, "dropout", step, leaf
        if self.device.type == "cuda":
            torch.cuda.manual_seed(torch_seed(*path))
        if self.in_process:
            return OwnGenerator(torch_seed(*path))
        if self.undrawn is nullcontext:
            seed_generators(*path)
        else:
            torch.default_generator.manual_seed(torch_seed(*path))
        return nullcontext()

    def _keep(self, leaf: int | None) -> bool:
        """Keep what a micro-batch's forward pass has changed, and return whether any of it is new."""
        new = self.statistics.keep(leaf)
        if new and self.recipe.model.checkpointing:
            raise UserError(
                f"model.checkpointing is true, but the forward pass changes {several(new)}, so a block that "
                "is computed again would use other values; remove model.checkpointing"
            )
        return bool(new)

    def _leaf(self, loss: LossSum, flags: Flags, replaced: int, new: bool) -> Tensor:
        """Return one micro-batch's contribution to the totals, float64 (N,).

        The order is loss, count, stop, save, replaced, new, parts, statistics.
        """
        names = sorted(loss.parts)
        if self.names not in (None, names):
            raise UserError(
                f"loss() of the task {type(self.task).__name__} returned the parts {names}, but "
                f"{self.names} for an earlier micro-batch; expected the same names for every micro-batch"
            )
        self.names = names
        scalars = [
            loss.sum.detach(),
            loss.count,
            *torch.tensor([float(flags.stop), float(flags.save), float(replaced), float(new)]),
            *(loss.parts[n] for n in names),
        ]
        vector = torch.stack([s.to(self.device, torch.float64, non_blocking=True) for s in scalars])
        return torch.cat([vector, self.statistics.leaf().to(torch.float64)])

    def _totals(
        self,
        vector: Tensor,
        unreadable: list[Unreadable],
        unused: Mapping[int, AbstractSet[int]],
        opinions: Sequence[str] = ("", ""),
    ) -> Totals:
        names = self.names or []
        scalars, statistics = vector.tensor_split([6 + len(names)])
        return Totals(scalars, names, statistics, unreadable, unused, opinions)


class SyncAccumulator(Accumulator):
    """Computes the gradients of a step, with batch norms over the global batch."""

    def __init__(
        self, task: Task, model: nn.Module, statistics: RunningStatistics, recipe: Recipe, world: World
    ) -> None:
        super().__init__(task, model, statistics, recipe, world)
        self.autocast = autocast_for(shared=True)
        self.undrawn = partial(undrawn, "batch_norm is 'sync'", "batch_norm: micro")
        self.side = SideBySide(model, self.exchange)

    def run(
        self,
        step: int,
        batches: Iterator[Any],
        scale: Callable[[Tensor], Tensor],
        flags: Flags,
        compared: Compared | None = None,
    ) -> Totals:
        """Run a step like :meth:`Accumulator.run`, with all of this rank's micro-batches in memory at once.

        ``compared`` is ignored, because no micro-batch can be computed alone.
        """
        drawn = [self._draw(batches) for _ in self.mine]
        losses: list[LossSum] = []

        def forward(number: int) -> Tensor:
            seeded = self._seeded(step, self.mine[number])
            with seeded, self.autocast(self.recipe.precision, self.device):
                loss = self._loss(self.side.replicas[number], drawn[number][0])
            losses.append(LossSum(loss.sum.detach(), loss.count, loss.parts))
            return scale(loss.sum)

        self.gradients.begin()
        self.statistics.begin_micro_batch()
        with self.undrawn():
            self.side.run(forward)
        if new := self.statistics.keep(None):
            raise UserError(
                f"batch_norm is 'sync', but the forward pass changes {several(new)}, which micro-batches "
                "that run side by side share; use batch_norm: micro"
            )
        self.statistics.mark_called(self.side.called)
        leaves = [
            self._leaf(loss, Flags() if number else flags, len(drawn[number][1]), new=False)
            for number, loss in enumerate(losses)
        ]
        totals = self.exchange.total(leaves)
        for leaf, replica in zip(self.mine, self.side.replicas, strict=True):
            self.gradients.put(replica, leaf)
        unreadable = [one for _, missing in drawn for one in missing]
        return self._totals(totals, unreadable, self.gradients.unused)


def make_accumulator(
    task: Task, model: nn.Module, statistics: RunningStatistics, recipe: Recipe, world: World
) -> Accumulator:
    """Create an accumulator for ``recipe.batch_norm`` and the parameters that require gradients."""
    is_sync = recipe.batch_norm == "sync" and bool(norms_over_batch(model))
    kind = SyncAccumulator if is_sync else Accumulator
    return kind(task, model, statistics, recipe, world)
