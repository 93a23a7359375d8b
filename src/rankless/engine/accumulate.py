"""Sum the gradients and counts of a step's micro-batches over all ranks, along the fixed tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rankless.engine.compute import Compute
from rankless.engine.divergence import several
from rankless.engine.running_statistics import RunningStatistics
from rankless.engine.totals import Compared, Flags, Packer, Totals
from rankless.errors import UserError
from rankless.recipe.schema import Recipe
from rankless.structures import LossSum, Unreadable
from rankless.tasks.protocol import Task
from rankless.world.bits import bit_sum, digest
from rankless.world.exchange import Exchange, Pending
from rankless.world.process_group import World
from rankless.world.reduce import GradientSum
from rankless.world.sync_norm import SideBySide, norms_over_batch

Scale = Callable[[Tensor], Tensor]
"""Scales the loss before the backward pass."""


class Accumulator(Protocol):
    """Computes the gradients of a step."""

    def run(
        self,
        step: int,
        batches: Iterator[Any],
        scale: Scale,
        flags: Flags,
        compared: Compared | None = None,
    ) -> Totals:
        """Compute this rank's micro-batches, and sum the results of all ranks.

        The sums of the gradients are then in the parameters. If ``compared`` is given, the first batch is
        another rank's micro-batch.
        """


class OneByOne:
    """Computes micro-batches one after the other. Batch norms are frozen or see a single micro-batch."""

    def __init__(self, compute: Compute, world: World) -> None:
        self.compute, self.packer = compute, Packer(compute.task)
        self.exchange, self.mine, self.gradients = _tree(compute, world)

    def run(
        self,
        step: int,
        batches: Iterator[Any],
        scale: Scale,
        flags: Flags,
        compared: Compared | None = None,
    ) -> Totals:
        leaves: list[Tensor] = []
        pending: list[Pending] = []
        unreadable: list[Unreadable] = []
        opinions: list[Tensor | None] = [None, None]
        self.gradients.begin()
        if compared:
            opinions[1] = self._other(step, compared.other, batches, scale)
        for leaf in self.mine:
            batch, missing = self.compute.draw(batches)
            unreadable += missing

            def backward(loss: LossSum, leaf: int = leaf, missing: Sequence[Unreadable] = missing) -> None:
                mine = flags if leaf == self.mine.start else Flags()
                new = self.compute.keep(leaf)
                leaves.append(self._packed(loss, mine, len(missing), new))
                if leaf == self.mine[-1]:
                    sums = self.exchange.fold(leaves)
                    pending.append(self.exchange.start(sums, torch.empty_like(sums[0])))
                is_compared = compared is not None and leaf == compared.own
                self.gradients.backward(scale(loss.sum), leaf, apart=is_compared)
                if is_compared and not missing:
                    opinions[0] = self._bits(leaves[-1])

            self.compute(batch, step, leaf, backward)
        (totals,) = pending
        totals.combine()
        totals.finish()
        digests = ["" if one is None else digest(one.tolist()) for one in opinions]
        return self.packer.totals(totals.result, unreadable, self.gradients.unused, digests)

    def _other(self, step: int, leaf: int, batches: Iterator[Any], scale: Scale) -> Tensor | None:
        """Return the bit sums of another rank's micro-batch, or None if any of its images is missing."""
        batch, missing = self.compute.draw(batches)
        packed: list[Tensor] = []

        def backward(loss: LossSum) -> None:
            packed.append(self._packed(loss, Flags(), len(missing), self.compute.keep(None)))
            self.gradients.backward(scale(loss.sum), None, apart=True)

        self.compute(batch, step, leaf, backward)
        return None if missing else self._bits(packed[0])

    def _packed(self, loss: LossSum, flags: Flags, replaced: int, new: bool) -> Tensor:
        return self.packer.pack(loss, flags, replaced, new, self.compute.statistics.leaf())

    def _bits(self, leaf: Tensor) -> Tensor:
        """Return the bit sums of a micro-batch's totals and of the gradients of P parameters, (1 + P,)."""
        bits = self.gradients.bits
        return torch.stack([bit_sum(self.packer.without_flags(leaf)), *(bits[n] for n in sorted(bits))])


class AllAtOnce:
    """Computes all micro-batches of this rank side by side, with batch norms over the global batch."""

    def __init__(self, compute: Compute, world: World) -> None:
        self.compute, self.packer = compute, Packer(compute.task)
        self.exchange, self.mine, self.gradients = _tree(compute, world)
        self.side = SideBySide(compute.model, self.exchange)

    def run(
        self,
        step: int,
        batches: Iterator[Any],
        scale: Scale,
        flags: Flags,
        compared: Compared | None = None,
    ) -> Totals:
        """Ignore ``compared``, because no micro-batch can be computed alone; see :class:`Accumulator`."""
        drawn = [self.compute.draw(batches) for _ in self.mine]
        losses: list[LossSum] = []

        def forward(number: int) -> Tensor:
            batch, _ = drawn[number]
            loss = self.compute.loss(self.side.replicas[number], batch, step, self.mine[number])
            losses.append(LossSum(loss.sum.detach(), loss.count, loss.parts))
            return scale(loss.sum)

        statistics = self.compute.statistics
        self.gradients.begin()
        statistics.begin_micro_batch()
        with self.compute.undrawn():
            self.side.run(forward)
        if new := statistics.keep(None):
            raise UserError(
                f"batch_norm is 'sync', but the forward pass changes {several(new)}, which micro-batches "
                "that run side by side share; use batch_norm: micro"
            )
        statistics.mark_called(self.side.called)
        leaves = [
            self.packer.pack(
                loss, Flags() if number else flags, len(drawn[number][1]), False, statistics.leaf()
            )
            for number, loss in enumerate(losses)
        ]
        totals = self.exchange.total(leaves)
        for leaf, replica in zip(self.mine, self.side.replicas, strict=True):
            self.gradients.put(replica, leaf)
        unreadable = [one for _, missing in drawn for one in missing]
        return self.packer.totals(totals, unreadable, self.gradients.unused)


def _tree(compute: Compute, world: World) -> tuple[Exchange, range, GradientSum]:
    """Return the layout of the tree, this rank's micro-batches, and the sum of their gradients."""
    recipe = compute.recipe
    count = recipe.batch.micro_batches
    exchange = Exchange(count, world.rank, world.size, world.transport)
    exact, zero = recipe.reduce == "exact", recipe.find_unused_parameters
    gradients = GradientSum(compute.model, exchange, exact=exact, zero_unused=zero, owns_all=compute.owns_all)
    return exchange, world.own_micro_batches(count), gradients


def make_accumulator(
    task: Task,
    model: nn.Module,
    statistics: RunningStatistics,
    recipe: Recipe,
    world: World,
    *,
    owns_all: bool = True,
) -> Accumulator:
    """Create an accumulator for ``recipe.batch_norm`` and the parameters that require gradients.

    See :class:`Compute` for the arguments.
    """
    is_sync = recipe.batch_norm == "sync" and bool(norms_over_batch(model))
    compute = Compute(task, model, statistics, recipe, world, owns_all=owns_all, side_by_side=is_sync)
    return AllAtOnce(compute, world) if is_sync else OneByOne(compute, world)
