"""The sum of gradients over all micro-batches of a step, overlapped with the last backward pass.

It is computed in a communication hook of ``DistributedDataParallel``. All micro-batches except the last one
run under ``no_sync``, and their gradients are added along the fixed tree (:mod:`rankless.world.tree`). During
the last backward pass, each bucket is exchanged as soon as it is ready, while the next ones are computed.
"""

# No `from __future__ import annotations` here, because DDP checks the hooks' annotations as types.
import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankless.world.bits import bit_sum
from rankless.world.compat import NO_BUFFER_BROADCAST
from rankless.world.exchange import Exchange, Pending
from rankless.world.shared_memory import share
from rankless.world.tree import Fold, Node
from rankless.world.uncompiled import PlainDataParallel

Gradients = Sequence[Tensor]

# Small enough to overlap with the backward pass of a small network, large enough to fill a link.
BUCKET_MIB = 4


def add_gradients(left: Gradients, right: Gradients) -> Gradients:
    """Add ``left`` to ``right`` in place, and return ``right``."""
    torch._foreach_add_(list(right), list(left))
    return right


class GradientSum:
    """The sum of the gradients of all micro-batches of a step, in ``parameter.grad`` on every rank.

    Args:
        module: the module to call for each micro-batch. If its parameters or their ``requires_grad`` change,
            create a new ``GradientSum``.
        exchange: the layout of the tree's nodes on the ranks.
        exact: whether to add along the fixed tree, instead of in the order of the backend's all-reduce.
        zero_unused: whether a missing gradient counts as zero. Otherwise, it counts as NaN. Then
            the total is NaN on every rank, and all ranks refuse the step.

    Attributes:
        unused: for each of this rank's micro-batches, the indices of the parameters unused by its loss.
        bits: the bit sum of each parameter's gradient for the last micro-batch computed with ``apart``.
    """

    def __init__(
        self, module: nn.Module, exchange: Exchange, *, exact: bool, zero_unused: bool = False
    ) -> None:
        self.layout, self.exact = exchange, exact
        self.missing = missing_value(zero_unused)
        self.unused: dict[int, set[int]] = {}
        self.bits: dict[int, Tensor] = {}
        self.own = exchange.own
        self.bare = module
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.number: dict[Tensor, int] = {p: number for number, p in enumerate(self.parameters)}
        # The gradients before a backward pass. Their versions increase if the pass adds to them.
        self.before: list[tuple[Tensor, int] | None] = [None] * len(self.number)
        # Buffers are not broadcast, because running statistics are summed along the tree instead.
        self.module = PlainDataParallel(
            module,
            process_group=exchange.transport.group,
            gradient_as_bucket_view=True,
            bucket_cap_mb=BUCKET_MIB,
            **NO_BUFFER_BROADCAST,
        )
        # Weak, because the garbage collector does not see reference cycles through the C++ reducer.
        self.module.register_comm_hook(weakref.ref(self), _exact_hook if exact else _fast_hook)
        self.fold: Fold[Gradients] = Fold(exchange.micro_batches, add_gradients)
        self.tail = Node(0, 0)
        self.waiting: list[Pending] = []
        self.combined = 0  # number of combined exchanges in self.waiting
        self.promised: list[tuple[torch.futures.Future[Tensor], Tensor]] = []
        self.shared = share(exchange, self.parameters) if exact else None
        if exact and exchange.transport.gathers_apart:
            self._look_between_buckets()

    def _look_between_buckets(self) -> None:
        """Combine arrived parts at every layer of the backward pass.

        Otherwise, the connections would be idle until the last buckets, with many layers each, are ready.
        """
        owner = weakref.ref(self)

        def look(_: Tensor) -> None:
            if one := owner():
                one.combine_arrived()

        hooks = [p.register_hook(look) for p in self.parameters if p.ndim > 1]
        for hook in hooks:
            weakref.finalize(self, hook.remove)

    @contextmanager
    def not_added(self) -> Iterator[None]:
        """Run the passes of any rank's micro-batch within this context, only to set ``bits``.

        The context must come before this rank's own micro-batches of a step.
        """
        self.leaf = -1
        self._set_gradients(None)
        with self.module.no_sync():
            yield
        for number, p in enumerate(self.parameters):
            self.bits[number] = bit_sum(torch.full_like(p, self.missing) if p.grad is None else p.grad)
        self._set_gradients(None)

    @contextmanager
    def micro_batch(self, leaf: int, *, apart: bool = False) -> Iterator[None]:
        """Run the forward pass and :meth:`backward` of this rank's next micro-batch within this context.

        With ``apart``, set ``bits`` before the gradients are added to those of other micro-batches.
        """
        node = Node(0, leaf)
        if leaf == self.own.start:
            self.fold.stack.clear()
            self.unused.clear()
            self._set_gradients(None)
        elif not self.exact:
            node = Node(0, 0)
        elif leaf % 2 and not apart and self.fold.stack and self.fold.stack[-1][0] == Node(0, leaf - 1):
            # Let autograd add to the left sibling's gradients in place, which computes left + right.
            self._set_gradients(self.fold.stack.pop()[1])
            node = Node(1, leaf // 2)
        self.tail, self.leaf, self.apart = node, leaf, apart
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
        if apart:
            self.bits = {n: bit_sum(p.grad) for n, p in enumerate(self.parameters) if p.grad is not None}
        if self.exact:
            self.fold.push(node, [p.grad for p in self.parameters if p.grad is not None])
            self._set_gradients(None)

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of the micro-batch's loss, a scalar."""
        if self.leaf == self.own[-1]:
            # Otherwise, the bucket of an unused parameter would never be ready, and other ranks would wait.
            loss = _Visit.apply(loss, *self.parameters)
        torch.autograd.backward(loss)

    def _unreached(self, numbers: Iterable[int]) -> list[int]:
        """Record and return the parameters among ``numbers`` that the backward pass did not reach."""
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
        """Return the last micro-batch's gradients in a bucket, including values for missing gradients."""
        views = _views(bucket.buffer(), bucket)
        numbers = [self.number[parameter] for parameter in bucket.parameters()]
        unused = set(self._unreached(numbers))
        for number, view in zip(numbers, views, strict=True):
            if number in unused:
                view.fill_(self.missing) if self.before[number] is None else view.add_(self.missing)
            self.before[number] = None  # the bucket contains a copy
            if self.apart:
                self.bits[number] = bit_sum(view)
        return views

    def combine_arrived(self) -> None:
        """Combine the started exchanges in order, up to the first one whose parts have not arrived."""
        while self.combined < len(self.waiting) and self.waiting[self.combined].combine_if_there():
            self.combined += 1

    def exchange(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Start exchanging a bucket and combine arrived exchanges, in the same order on all ranks."""
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
    """Identity function for the loss. Its backward pass visits all parameters, even unused ones."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *parameters: Tensor) -> Tensor:
        ctx.count = len(parameters)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *[None] * ctx.count


def missing_value(zero_unused: bool) -> float:
    """Return the value of a missing gradient: NaN, or -0.0 if it counts as zero.

    Adding -0.0 leaves the bits of every number unchanged, even those of 0.0 and -0.0.
    """
    return -0.0 if zero_unused else math.nan


def _views(buffer: Tensor, bucket: dist.GradBucket) -> list[Tensor]:
    """Return the gradients in a bucket as views with the strides of their parameters."""
    return [
        buffer.as_strided(p.size(), p.stride(), plain.storage_offset())
        for p, plain in zip(bucket.parameters(), bucket.gradients(), strict=True)
    ]


def _flat(gradients: Gradients, views: Gradients, buffer: Tensor) -> Tensor:
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
    if bucket.is_last():  # no work is left to overlap
        with owner().layout.transport.waits.waiting():
            work.wait()
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future
