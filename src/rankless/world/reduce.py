"""The sum of gradients over all micro-batches of a step, overlapped with the last backward pass.

A hook on each parameter reports its gradient. As soon as all gradients of a bucket are there, they are copied
into one vector, and the vectors of all micro-batches are added along the fixed tree
(:mod:`rankless.world.tree`). In the last backward pass of a step, each complete bucket is exchanged while the
gradients of the next ones are computed.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.world.bits import bit_sum
from rankless.world.exchange import Exchange, Pending, add_in_place
from rankless.world.graph import leaves
from rankless.world.shared_memory import share
from rankless.world.transport import Work
from rankless.world.tree import Fold, Node

# Small enough to overlap with the backward pass of a small network, large enough to fill a link.
BUCKET_MIB = 4


class GradientSum:
    """The sum of the gradients of all micro-batches of a step, in ``parameter.grad`` on every rank.

    Each step begins with :meth:`begin`, and then adds this rank's micro-batches in order with
    :meth:`backward` or :meth:`put`. The last one exchanges the sums.

    Args:
        module: the module whose parameters are trained, all on one device.
        exchange: the layout of the tree's nodes on the ranks.
        exact: whether to add along the fixed tree, instead of in the order of the backend's all-reduce.
        zero_unused: whether a missing gradient counts as zero. More precisely, it is -0.0, because adding it
            leaves the bits of every number unchanged. Otherwise, a missing gradient counts as NaN. Then the
            total is NaN on every rank, and all ranks refuse the step.
        owns_all: whether losses depend on no other parameters. Otherwise, backward passes leave the gradients
            of all others as they are, because nobody sums them.

    Attributes:
        unused: for each of this rank's micro-batches, the indices of the parameters unused by its loss.
        bits: the bit sum of each parameter's gradient for the last micro-batch computed with ``apart``.
    """

    def __init__(
        self,
        module: nn.Module,
        exchange: Exchange,
        *,
        exact: bool,
        zero_unused: bool = False,
        owns_all: bool = True,
    ) -> None:
        self.layout, self.exact, self.zero_unused = exchange, exact, zero_unused
        self.all = dict(module.named_parameters())
        self.trained = {name: p for name, p in self.all.items() if p.requires_grad}
        self.names, self.parameters = list(self.trained), list(self.trained.values())
        self.inputs = None if owns_all else self.parameters
        self.unused: dict[int, set[int]] = {}
        self.bits: dict[int, Tensor] = {}
        self.shared = share(exchange, self.parameters) if exact else None
        self.is_ordered = self.is_active = False
        self._lay_out([*reversed(range(len(self.parameters)))])
        hook = partial(_report, weakref.ref(self))  # the parameters must not keep this object alive
        for number, parameter in enumerate(self.parameters):
            handle = parameter.register_post_accumulate_grad_hook(partial(hook, number))
            weakref.finalize(self, handle.remove)

    def begin(self) -> None:
        """Begin a step, and forget the gradients of the previous one."""
        for bucket in self.buckets:
            bucket.sums.stack.clear()
        self.unused.clear()
        self.waiting: list[Pending] = []
        self.combined = self.started = 0  # numbers of combined exchanges and of started buckets
        for parameter in self.parameters:
            parameter.grad = None

    def backward(self, loss: Tensor, leaf: int | None, *, apart: bool = False) -> None:
        """Run the backward pass of a micro-batch's loss, a scalar, and add its gradients.

        If ``leaf`` is None, the micro-batch is another rank's, and its gradients are not added. With
        ``apart``, set ``bits``.
        """
        self._check(self.all)
        for name, parameter in self.trained.items():
            if parameter.grad is not None:
                raise UserError(
                    f"the parameter '{name}' already has a gradient before the backward pass of the loss; "
                    "do not call backward() in the loss or the model, and return the whole loss instead"
                )
        self._begin_micro_batch(leaf, apart)
        if self.is_last and self.zero_unused:
            # Otherwise, the bucket of an unused parameter would delay the exchange of all later ones.
            reached = leaves(loss)
            for number, parameter in enumerate(self.parameters):
                if parameter not in reached:
                    self._arrived(number)
        self.is_active = True
        try:
            torch.autograd.backward(loss, inputs=self.inputs)
        finally:
            self.is_active = False
        self._end_micro_batch()

    def put(self, replica: nn.Module, leaf: int) -> None:
        """Take the gradients that a micro-batch has in a copy of the module, and add them."""
        copies = dict(replica.named_parameters())
        self._check(copies)
        self._begin_micro_batch(leaf)
        for number, (name, parameter) in enumerate(self.trained.items()):
            parameter.grad, copies[name].grad = copies[name].grad, None
            if parameter.grad is not None:
                self.report(number)
        self._end_micro_batch()

    def _check(self, parameters: Mapping[str, Tensor]) -> None:
        """Check that the task has not changed which parameters are trained."""
        for name, parameter in parameters.items():
            if parameter.requires_grad != (name in self.trained):
                raise UserError(
                    f"requires_grad of the parameter '{name}' became {parameter.requires_grad} during the "
                    "run; expected the same trained parameters in every step; set it before the first step, "
                    "or use model.freeze to train a backbone later"
                )

    def _lay_out(self, order: Sequence[int]) -> None:
        """Divide the parameters into buckets, given their order in the backward pass."""
        chosen = [self.parameters[number] for number in order]
        self.buckets = [
            _Bucket([order[i] for i in group], [chosen[i] for i in group], self.layout.micro_batches)
            for group in divide([(p.dtype, p.nbytes) for p in chosen])
        ]
        self.bucket_of = {number: bucket for bucket in self.buckets for number in bucket.numbers}

    def _begin_micro_batch(self, leaf: int | None, apart: bool = False) -> None:
        self.leaf, self.apart = leaf, apart
        self.is_last = leaf == self.layout.own[-1]
        self.reached: list[int] = []
        for bucket in self.buckets:
            bucket.missing = set(bucket.numbers)

    def report(self, number: int) -> None:
        """Note that a parameter has received its gradient. Its hooks have run."""
        name, parameter = self.names[number], self.parameters[number]
        gradient = parameter.grad
        if gradient is None:
            raise UserError(
                f"a hook removed the gradient of the parameter '{name}'; expected hooks that change "
                "gradients, because Rankless sums them and runs the optimizer"
            )
        if gradient.layout is not torch.strided:
            raise UserError(
                f"the gradient of the parameter '{name}' is sparse; use dense gradients, as in "
                "nn.Embedding(…, sparse=False)"
            )
        if number not in self.bucket_of[number].missing:
            raise UserError(
                f"the parameter '{name}' received a gradient twice in one backward pass; use "
                "torch.utils.checkpoint with use_reentrant=False"
            )
        self.reached.append(number)
        self._arrived(number)
        if self.is_last and self.exact and self.layout.transport.gathers_apart and parameter.ndim > 1:
            # Otherwise, the connections would be idle until the last buckets, with many layers, are ready.
            self._combine_arrived()

    def _arrived(self, number: int) -> None:
        bucket = self.bucket_of[number]
        bucket.missing.remove(number)
        if not bucket.missing:
            self._add(bucket)
            if self.is_last:
                self._exchange_complete()

    def _exchange_complete(self) -> None:
        """Start exchanging complete buckets, in the same order on all ranks."""
        while self.started < len(self.buckets) and not self.buckets[self.started].missing:
            self.started += 1
            self.exchange(self.buckets[self.started - 1])

    def _end_micro_batch(self) -> None:
        """Add the buckets with unused parameters. After the last micro-batch, finish all exchanges."""
        for bucket in self.buckets:
            if bucket.missing:
                bucket.missing.clear()
                self._add(bucket)
        unused = set(range(len(self.parameters))).difference(self.reached)
        if unused and self.leaf is not None:
            self.unused[self.leaf] = unused
        if self.is_last:
            self._exchange_complete()
            self._finish()

    def _add(self, bucket: _Bucket) -> None:
        """Add the gradients of a bucket to those of earlier micro-batches.

        The copy owns its memory. Autograd may give several parameters gradients that share memory, and
        adding to them in place would count some values twice.
        """
        vector = bucket.empty()
        views = bucket.views(vector)
        there = [(v, p.grad) for v, p in zip(views, bucket.parameters, strict=True) if p.grad is not None]
        if len(there) < len(views):
            vector.fill_(-0.0 if self.zero_unused else math.nan)
        if there:
            torch._foreach_copy_([view for view, _ in there], [gradient for _, gradient in there])
        if self.apart:
            self.bits |= {n: bit_sum(view) for n, view in zip(bucket.numbers, views, strict=True)}
        for parameter in bucket.parameters:
            parameter.grad = None
        if self.leaf is None:
            return
        if self.exact or not bucket.sums.stack:
            bucket.sums.push(Node(0, self.leaf), vector)
        else:
            bucket.last.add_(vector)

    def exchange(self, bucket: _Bucket) -> None:
        """Start exchanging a bucket and combine arrived exchanges, in the same order on all ranks."""
        self._combine_arrived()
        sums, result = [value for _, value in bucket.sums.stack], bucket.last
        if self.layout.size == 1 or not result.numel():
            return
        if not self.exact:
            self.waiting.append(_AllReduce(self.layout, result))
        elif self.shared:
            self.waiting.append(self.shared.start(sums, result))
        else:
            parts = self.layout.parts(result)
            self.waiting += [self.layout.start([one[part] for one in sums], result[part]) for part in parts]

    def _combine_arrived(self) -> None:
        """Combine the started exchanges in order, up to the first one whose parts have not arrived."""
        while self.combined < len(self.waiting) and self.waiting[self.combined].combine_if_there():
            self.combined += 1

    def _finish(self) -> None:
        for pending in self.waiting[self.combined :]:
            pending.combine()
        for pending in self.waiting:
            pending.finish()
        self.waiting.clear()
        if self.shared:
            self.shared.begin_again()
        for bucket in self.buckets:
            for parameter, view in zip(bucket.parameters, bucket.views(bucket.last), strict=True):
                parameter.grad = view
            bucket.sums.stack.clear()
        if not self.is_ordered:
            self._lay_out(self._agreed_order())
            self.is_ordered = True

    def _agreed_order(self) -> list[int]:
        """Return the order in which rank 0's gradients arrived, followed by the unused parameters."""
        missing = set(range(len(self.parameters))).difference(self.reached)
        order = torch.tensor([*self.reached, *sorted(missing, reverse=True)])
        if self.layout.size > 1:
            with self.layout.transport.waits.waiting():
                self.layout.transport.broadcast(order, 0)
        return order.tolist()


class _Bucket:
    """Parameters of one dtype whose gradients are exchanged as one vector (N,), real even if they are not.

    Attributes:
        numbers: the indices of the parameters.
        sums: the vectors of this rank's nodes in the tree.
        missing: the indices of the parameters whose gradients have not arrived.
    """

    def __init__(self, numbers: list[int], parameters: list[nn.Parameter], micro_batches: int) -> None:
        self.numbers, self.parameters = numbers, parameters
        self.dtype, self.device = parameters[0].dtype, parameters[0].device
        self.sums: Fold[Tensor] = Fold(micro_batches, add_in_place)
        self.missing: set[int] = set()
        # Weights and gradients with the same strides are faster to update. The strides are dense.
        strides = [torch.empty_like(p, device="meta").stride() for p in parameters]
        starts = itertools.accumulate((p.numel() for p in parameters), initial=0)
        self.places = [(p.shape, s, start) for p, s, start in zip(parameters, strides, starts, strict=False)]
        self.nbytes = sum(p.nbytes for p in parameters)

    @property
    def last(self) -> Tensor:
        """The last one of the sums. It is replaced with the total of all ranks."""
        return self.sums.stack[-1][1]

    def empty(self) -> Tensor:
        """Return a new vector."""
        length = self.nbytes // self.dtype.itemsize
        return torch.empty(length, dtype=self.dtype, device=self.device).view(self.dtype.to_real())

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return the parts of a vector with the shapes and strides of the parameters."""
        return [vector.view(self.dtype).as_strided(*place) for place in self.places]


class _AllReduce(Pending):
    """The exchange of one vector with the backend's all-reduce. See :class:`Pending`."""

    def __init__(self, layout: Exchange, result: Tensor) -> None:
        self.layout, self.result = layout, result
        self.work = cast(Work, dist.all_reduce(result, async_op=True))

    def combine(self) -> None:
        pass

    def finish(self) -> None:
        self._wait()


def _report(owner: weakref.ref[GradientSum], number: int, _: Tensor) -> None:
    # Other backward passes, such as those of the user's own loop between two steps, are not of interest.
    if (one := owner()) and one.is_active:
        one.report(number)


def divide(tensors: Iterable[tuple[Any, int]]) -> list[list[int]]:
    """Divide tensors, given by kind and number of bytes, into buckets of one kind, and return their indices.

    The buckets are in the order in which they become complete.
    """
    open_buckets: dict[Any, tuple[list[int], int]] = {}
    made: list[list[int]] = []
    for number, (kind, size) in enumerate(tensors):
        bucket, before = open_buckets.get(kind, ([], 0))
        bucket.append(number)
        open_buckets[kind] = bucket, before + size
        if before + size >= BUCKET_MIB * 2**20:
            made.append(bucket)
            del open_buckets[kind]
    return sorted([*made, *(bucket for bucket, _ in open_buckets.values())], key=lambda one: one[-1])
