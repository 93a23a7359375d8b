"""Summing gradients over all micro-batches of a step while the last backward pass still runs.

It is a communication hook of ``DistributedDataParallel``: the earlier micro-batches run under ``no_sync`` and
are folded along the tree as they come; in the last one, each bucket that becomes ready is exchanged while the
next ones are computed.
"""

# No `from __future__ import annotations` here: DDP checks the hooks' annotations as types.
import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankless.world.compat import NO_BUFFER_BROADCAST
from rankless.world.exchange import Exchange, Pending
from rankless.world.shared_memory import share
from rankless.world.tree import Fold, Node
from rankless.world.uncompiled import PlainDataParallel

Gradients = Sequence[Tensor]

# Small enough that several overlap with the backward pass of a small net, large enough to fill a link.
BUCKET_MIB = 4


def add_gradients(left: Gradients, right: Gradients) -> Gradients:
    """``left + right`` in the memory of ``right``."""
    torch._foreach_add_(list(right), list(left))
    return right


class GradientSum:
    """Leaves in ``parameter.grad`` the sum over all micro-batches of the step, on every rank.

    Args:
        module: called for each micro-batch. Its parameters and their ``requires_grad`` stay as they are while
            this lives; where they change, another one is made.
        exchange: who holds which part of the tree.
        exact: add along the fixed tree; else let the backend's all-reduce choose the order.
        zero_unused: a gradient that a micro-batch lacks counts as zero. Otherwise it counts as NaN, which
            reaches the total on every rank, so that all of them can refuse the step together.

    Attributes:
        unused: per own micro-batch of the step, the parameters (numbers) that its loss did not depend on.
    """

    def __init__(
        self, module: nn.Module, exchange: Exchange, *, exact: bool, zero_unused: bool = False
    ) -> None:
        self.layout, self.exact = exchange, exact
        self.missing = missing_value(zero_unused)
        self.unused: dict[int, set[int]] = {}
        self.own = exchange.own
        self.bare = module
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.number: dict[Tensor, int] = {p: number for number, p in enumerate(self.parameters)}
        # The gradients before a backward pass, with their versions: it adds to those that it reaches.
        self.before: list[tuple[Tensor, int] | None] = [None] * len(self.number)
        # Buffers are never broadcast: running statistics are summed along the tree.
        self.module = PlainDataParallel(
            module,
            process_group=exchange.transport.group,
            gradient_as_bucket_view=True,
            bucket_cap_mb=BUCKET_MIB,
            **NO_BUFFER_BROADCAST,
        )
        # A weak one: the reducer in C++ holds what it is given, and no collector sees the ring that closes.
        self.module.register_comm_hook(weakref.ref(self), _exact_hook if exact else _fast_hook)
        self.fold: Fold[Gradients] = Fold(exchange.micro_batches, add_gradients)
        self.tail = Node(0, 0)
        self.waiting: list[Pending] = []
        self.combined = 0  # of those that wait, from the first on
        self.promised: list[tuple[torch.futures.Future[Tensor], Tensor]] = []
        self.shared = share(exchange, self.parameters) if exact else None
        if exact and exchange.transport.gathers_apart:
            self._look_between_buckets()

    def _look_between_buckets(self) -> None:
        """Combine arrived parts at every layer of the backward pass.

        The last buckets hold many layers: until they are ready the network would have nothing to do.
        """
        owner = weakref.ref(self)

        def look(_: Tensor) -> None:
            if one := owner():
                one.combine_arrived()

        hooks = [p.register_hook(look) for p in self.parameters if p.ndim > 1]
        for hook in hooks:
            weakref.finalize(self, hook.remove)

    @contextmanager
    def micro_batch(self, leaf: int) -> Iterator[None]:
        """Forward and :meth:`backward` of one own micro-batch, in their order, run inside this."""
        node = Node(0, leaf)
        if leaf == self.own.start:
            self.fold.stack.clear()
            self.unused.clear()
            self._set_gradients(None)
        elif not self.exact:
            node = Node(0, 0)
        elif leaf % 2 and self.fold.stack and self.fold.stack[-1][0] == Node(0, leaf - 1):
            # The left sibling waits: let autograd add to it in place, which is left + right.
            self._set_gradients(self.fold.stack.pop()[1])
            node = Node(1, leaf // 2)
        self.tail, self.leaf = node, leaf
        self.before = [None if p.grad is None else (p.grad, p.grad._version) for p in self.parameters]
        last = leaf == self.own[-1]
        with nullcontext() if last else self.module.no_sync():
            yield
        if last:
            return
        for number in self._unreached(range(len(self.parameters))):
            parameter = self.parameters[number]
            if parameter.grad is None:
                parameter.grad = torch.full_like(parameter, self.missing)
            else:
                parameter.grad.add_(self.missing)
        if self.exact:
            self.fold.push(node, [p.grad for p in self.parameters if p.grad is not None])
            self._set_gradients(None)

    def backward(self, loss: Tensor) -> None:
        """The backward pass of the micro-batch's loss, a scalar."""
        if self.leaf == self.own[-1]:
            # Without it the bucket of an unused parameter is never ready, and the other ranks wait for it.
            loss = _Visit.apply(loss, *self.parameters)
        torch.autograd.backward(loss)

    def _unreached(self, numbers: Iterable[int]) -> list[int]:
        """Return those of these parameters that the backward pass did not reach, which are then noted."""
        before = self.before
        unused = [
            number
            for number in numbers
            if ((was := before[number]) is None and self.parameters[number].grad is None)
            or (was is not None and was[0]._version == was[1])
        ]
        if unused:
            self.unused.setdefault(self.leaf, set()).update(unused)
        return unused

    def _set_gradients(self, gradients: Gradients | None) -> None:
        for number, parameter in enumerate(self.parameters):
            parameter.grad = None if gradients is None else gradients[number]

    def completed(self, bucket: dist.GradBucket) -> list[Tensor]:
        """The gradients in a bucket of the last micro-batch, with those that it lacks filled in."""
        views = _views(bucket.buffer(), bucket)
        numbers = [self.number[parameter] for parameter in bucket.parameters()]
        unused = set(self._unreached(numbers))
        for number, view in zip(numbers, views, strict=True):
            if number in unused:
                view.fill_(self.missing) if self.before[number] is None else view.add_(self.missing)
            self.before[number] = None  # DDP has copied it into the bucket
        return views

    def combine_arrived(self) -> None:
        """Combine the exchanges under way up to the first that has not arrived."""
        while self.combined < len(self.waiting) and self.waiting[self.combined].combine_if_there():
            self.combined += 1

    def exchange(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Exchange this bucket and combine earlier ones that have arrived: all ranks in the same order."""
        buffer = bucket.buffer()
        views = self.completed(bucket)
        numbers = [self.number[p] for p in bucket.parameters()]
        fold: Fold[Gradients] = Fold(self.layout.micro_batches, add_gradients)
        fold.stack = [(node, [gradients[i] for i in numbers]) for node, gradients in self.fold.stack]
        fold.push(self.tail, views)
        sums = [*(_flat(gradients, views, buffer) for _, gradients in fold.stack[:-1]), buffer]
        devices: list[int | str | torch.device] = [] if buffer.device.type == "cpu" else [buffer.device]
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        self.combine_arrived()
        if self.shared:
            self.waiting.append(self.shared.start(sums, buffer))
        else:
            parts = self.layout.parts(buffer)
            self.waiting += [self.layout.start([one[part] for one in sums], buffer[part]) for part in parts]
        self.promised.append((future, buffer))
        if bucket.is_last():
            for pending in self.waiting[self.combined :]:
                pending.combine()
            for pending in self.waiting:
                pending.finish()
            for promise, total in self.promised:
                promise.set_result(total)
            self.waiting.clear()
            self.promised.clear()
            self.combined = 0
            if self.shared:
                self.shared.begin_again()
        return future


class _Visit(torch.autograd.Function):
    """The loss unchanged; its backward pass visits every parameter, with nothing where it has no gradient."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *parameters: Tensor) -> Tensor:
        """Return the scalar loss unchanged."""
        ctx.count = len(parameters)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Pass on the scalar gradient, and None for every parameter."""
        return gradient, *[None] * ctx.count


def missing_value(zero_unused: bool) -> float:
    """Return the value of a gradient that a micro-batch lacks.

    Zero is minus zero: adding it changes no bit of any number, 0.0 and -0.0 included, so that it makes no
    difference whether it is added or left out.
    """
    return -0.0 if zero_unused else math.nan


def _views(buffer: Tensor, bucket: dist.GradBucket) -> list[Tensor]:
    """The gradients in the bucket. DDP lays each out as its parameter, but its own views ignore strides."""
    return [
        buffer.as_strided(p.size(), p.stride(), plain.storage_offset())
        for p, plain in zip(bucket.parameters(), bucket.gradients(), strict=True)
    ]


def _flat(gradients: Gradients, views: Gradients, buffer: Tensor) -> Tensor:
    """The gradients laid out in memory as the bucket lays out its own."""
    flat = torch.empty_like(buffer)
    start = buffer.storage_offset()
    laid_out = [flat.as_strided(v.size(), v.stride(), v.storage_offset() - start) for v in views]
    torch._foreach_copy_(laid_out, list(gradients))
    return flat


def _exact_hook(owner: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = owner().exchange(bucket)
    return future


def _fast_hook(owner: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    owner().completed(bucket)
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    if bucket.is_last():  # nothing is left to do meanwhile
        with owner().layout.transport.waits.waiting():
            work.wait()
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future
