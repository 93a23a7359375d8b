"""Summing gradients over all micro-batches of a step while the last backward pass still runs.

It is a communication hook of ``DistributedDataParallel``: the earlier micro-batches run under ``no_sync`` and
are folded along the tree as they come; in the last one, each bucket that becomes ready is exchanged while the
next is computed.
"""

# No `from __future__ import annotations` here: DDP checks the hooks' annotations as types.
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankless.errors import UserError
from rankless.world.compat import NO_BUFFER_BROADCAST
from rankless.world.exchange import Exchange, Pending
from rankless.world.share import Fold, Node, own_micro_batches

Gradients = Sequence[Tensor]

# Small enough that several overlap with the backward pass of a small net, large enough to fill a link.
BUCKET_MIB = 8


def add_gradients(left: Gradients, right: Gradients) -> Gradients:
    """``left + right`` in the memory of ``right``."""
    torch._foreach_add_(list(right), list(left))
    return right


class GradientSum:
    """Leaves in ``parameter.grad`` the sum over all micro-batches of the step, on every rank.

    Args:
        module: called for each micro-batch. Its parameters and their ``requires_grad`` stay as they are while
            this lives; where they change, another one is made.
        plan: who holds which part of the tree.
        exact: add along the fixed tree; else let the backend's all-reduce choose the order.
    """

    def __init__(self, module: nn.Module, plan: Exchange, *, exact: bool) -> None:
        self.plan, self.exact = plan, exact
        self.own = own_micro_batches(plan.micro_batches, plan.rank, plan.size)
        self.bare = module
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.place: dict[Tensor, int] = {p: number for number, p in enumerate(self.parameters)}
        # Buffers are never broadcast: running statistics are summed along the tree.
        self.module = DistributedDataParallel(
            module, gradient_as_bucket_view=True, bucket_cap_mb=BUCKET_MIB, **NO_BUFFER_BROADCAST
        )
        # A weak one: the reducer in C++ holds what it is given, and no collector sees the ring that closes.
        self.module.register_comm_hook(
            weakref.ref(self) if exact else None, _exact_hook if exact else _fast_hook
        )
        self.fold: Fold[Gradients] = Fold(plan.micro_batches, add_gradients)
        self.tail = Node(0, 0)
        self.waiting: list[tuple[Pending, dist.GradBucket, torch.futures.Future[Tensor]]] = []

    @contextmanager
    def micro_batch(self, leaf: int) -> Iterator[None]:
        """Forward and backward of one own micro-batch, in their order, run inside this."""
        node = Node(0, leaf)
        if leaf == self.own.start:
            self.fold.stack.clear()
            self._set_gradients(None)
        elif not self.exact:
            node = Node(0, 0)
        elif leaf % 2 and self.fold.stack and self.fold.stack[-1][0] == Node(0, leaf - 1):
            # The left sibling waits: let autograd add to it in place, which is left + right.
            self._set_gradients(self.fold.stack.pop()[1])
            node = Node(1, leaf // 2)
        self.tail = node
        last = leaf == self.own[-1]
        with nullcontext() if last else self.module.no_sync():
            yield
        check_gradients(self.bare)
        if self.exact and not last:
            self.fold.push(node, [p.grad for p in self.parameters if p.grad is not None])
            self._set_gradients(None)

    def _set_gradients(self, gradients: Gradients | None) -> None:
        for number, parameter in enumerate(self.parameters):
            parameter.grad = None if gradients is None else gradients[number]

    def exchange(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Exchange this bucket; meanwhile finish the one before, so that every rank keeps one order."""
        buffer = bucket.buffer()
        views = _views(buffer, bucket)
        places = [self.place[p] for p in bucket.parameters()]
        fold: Fold[Gradients] = Fold(self.plan.micro_batches, add_gradients)
        fold.stack = [(node, [gradients[i] for i in places]) for node, gradients in self.fold.stack]
        fold.push(self.tail, views)
        sums = [*(_flat(gradients, views, buffer) for _, gradients in fold.stack[:-1]), buffer]
        devices: list[int | str | torch.device] = [] if buffer.device.type == "cpu" else [buffer.device]
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        if self.waiting:
            self.waiting[-1][0].combine()
        self.waiting.append((self.plan.start(sums, buffer), bucket, future))
        if bucket.is_last():
            self.waiting[-1][0].combine()
            for pending, ready, promise in self.waiting:
                pending.finish()
                promise.set_result(ready.buffer())
            self.waiting.clear()
        return future


def check_gradients(module: nn.Module) -> None:
    """See that a backward pass reached every parameter that is trained.

    Raises:
        UserError: names those that it did not reach.
    """
    missed = [
        name.removeprefix("model.")
        for name, p in module.named_parameters()
        if p.requires_grad and p.grad is None
    ]
    if missed:
        more = f" and {len(missed) - 5} more" if len(missed) > 5 else ""
        raise UserError(
            f"{', '.join(missed[:5])}{more}: a trainable parameter of the model took no part in the loss of "
            "a micro-batch; use it in every forward pass, set its requires_grad to False, or take it out"
        )


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
    places = [flat.as_strided(v.size(), v.stride(), v.storage_offset() - start) for v in views]
    torch._foreach_copy_(places, list(gradients))
    return flat


def _exact_hook(owner: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = owner().exchange(bucket)
    return future


def _fast_hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future
