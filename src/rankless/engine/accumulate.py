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
from rankless.tasks.checks import check_batch, check_loss
from rankless.tasks.protocol import Task
from rankless.world.bits import bit_sum, digest
from rankless.world.exchange import Exchange
from rankless.world.process_group import World
from rankless.world.reduce import GradientSum, missing_value
from rankless.world.sync_norm import SideBySide, norms_over_batch


class LossModule(nn.Module):
    """The task's loss as a module, so that data-parallel wrappers can call it."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model = model
        self.task = task

    def forward(self, batch: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        loss = self.task.loss(self.model, batch)
        check_loss(self.task, loss)
        return loss.sum, loss.count.detach(), {name: part.detach() for name, part in loss.parts.items()}


class Accumulator:
    """Computes the gradients of a step. Batch norms are frozen or use the statistics of each micro-batch.

    The model must already be on its device, with its backbone frozen if necessary.
    """

    def __init__(
        self, task: Task, model: nn.Module, statistics: RunningStatistics, recipe: Recipe, world: World
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
        self._wrap(LossModule(model, task))

    def _wrap(self, module: LossModule) -> None:
        exact, zero = self.recipe.reduce == "exact", self.recipe.find_unused_parameters
        self.gradients = GradientSum(module, self.exchange, exact=exact, zero_unused=zero)

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
        second = self._second(step, compared.other, batches, scale) if compared else None
        mine: Tensor | None = None
        for leaf in self.mine:
            batch, missing = self._draw(batches)
            unreadable += missing
            is_compared = compared is not None and leaf == compared.own
            with self.undrawn(), self.gradients.micro_batch(leaf, apart=is_compared):
                loss = self._forward(step, leaf, batch)
                first = flags if leaf == self.mine.start else Flags()
                leaves.append(self._leaf(loss, first, len(missing), self._keep(leaf)))
                seen = self._seen(leaves[-1]) if is_compared else None
                if leaf == self.mine[-1]:
                    sums = self.exchange.fold(leaves)
                    pending = self.exchange.start(sums, torch.empty_like(sums[0]))
                self.gradients.backward(scale(loss.sum))
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
            return LossSum(*self.gradients.module(batch))

    def _second(
        self, step: int, leaf: int, batches: Iterator[Any], scale: Callable[[Tensor], Tensor]
    ) -> Tensor | None:
        """Return the bit sums of another rank's micro-batch, or None if any of its images is missing."""
        batch, missing = self._draw(batches)
        with self.gradients.not_added():
            loss = self._forward(step, leaf, batch)
            seen = self._seen(self._leaf(loss, Flags(), len(missing), self._keep(None)))
            self.gradients.backward(scale(loss.sum))
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

    def _wrap(self, module: LossModule) -> None:
        self.autocast = autocast_for(shared=True)
        self.undrawn = partial(undrawn, "batch_norm is 'sync'", "batch_norm: micro")
        self.side = SideBySide(module, self.exchange)
        self.parameters = [p for p in module.parameters() if p.requires_grad]

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
                loss, *others = self.side.replicas[number](drawn[number][0])
            losses.append(LossSum(loss.detach(), *others))
            return scale(loss)

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
        unused = self._sum_gradients()
        return self._totals(totals, [one for _, missing in drawn for one in missing], unused)

    def _sum_gradients(self) -> dict[int, set[int]]:
        """Store the summed gradients in the parameters, and return each micro-batch's unused parameters."""
        missing = missing_value(self.recipe.find_unused_parameters)
        unused: dict[int, set[int]] = {}
        leaves = []
        for leaf, replica in zip(self.mine, self.side.replicas, strict=True):
            trained = [p for p in replica.parameters() if p.requires_grad]
            if lacking := {number for number, p in enumerate(trained) if p.grad is None}:
                unused[leaf] = lacking
            gradients = [torch.full_like(p, missing) if p.grad is None else p.grad for p in trained]
            leaves.append(torch.cat([gradient.flatten() for gradient in gradients]))
            for parameter in trained:
                parameter.grad = None
        total = self.exchange.total(leaves)
        start = 0
        for parameter in self.parameters:
            piece = total[start : start + parameter.numel()].view(parameter.shape)
            parameter.grad = torch.empty_like(parameter).copy_(piece)
            start += parameter.numel()
        return unused


def make_accumulator(
    task: Task, model: nn.Module, statistics: RunningStatistics, recipe: Recipe, world: World
) -> Accumulator:
    """Create an accumulator for ``recipe.batch_norm`` and the parameters that require gradients."""
    is_sync = recipe.batch_norm == "sync" and bool(norms_over_batch(model))
    kind = SyncAccumulator if is_sync else Accumulator
    return kind(task, model, statistics, recipe, world)
