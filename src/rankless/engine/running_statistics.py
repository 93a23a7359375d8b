"""Running statistics of batch norms, independent of which rank computes which micro-batch.

During a step, the buffers of every norm contain only the statistics of the last micro-batch, a leaf of the
fixed reduction tree. If a forward pass calls a norm several times, for example in a head shared by two
levels, the buffers contain the mean over the calls. After the step, the running statistics are updated once
with the mean over the micro-batches that called the norm. All buffers of the network are views of one
vector, so saving a leaf takes a single copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rankless.engine.forward_state import ForwardState
from rankless.errors import UserError


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return all batch norms of the model that have running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


class RunningStatistics:
    """The running statistics of a model's trained batch norms, as views of one vector.

    The model must already be on ``device``. It may have no batch norms. ``others`` are the other tensors that
    forward passes may change.
    """

    def __init__(
        self, norms: Sequence[_BatchNorm], device: torch.device, others: ForwardState | None = None
    ) -> None:
        self.others = others
        named = [(m, name) for m in norms for name in ("running_mean", "running_var")]
        buffers = [getattr(m, name) for m, name in named]
        self.taken = [(norm, _momentum(norm)) for norm in norms]
        nothing = torch.empty(0, device=device)
        self.vector = torch.cat(buffers) if buffers else nothing
        momenta = [torch.full_like(b, _momentum(m)) for (m, _), b in zip(named, buffers, strict=True)]
        self.momentum = torch.cat(momenta) if momenta else nothing
        counts = [torch.tensor(0) if (n := m.num_batches_tracked) is None else n for m in norms]
        self.counts = torch.stack(counts) if counts else nothing.long()
        # The length of each norm's part of the vector.
        self.lengths = torch.tensor([2 * m.num_features for m in norms], dtype=torch.long, device=device)
        self.all_called = self.vector.new_ones(len(norms))
        start = 0
        for (norm, name), buffer in zip(named, buffers, strict=True):
            setattr(norm, name, self.vector[start : start + buffer.numel()])
            start += buffer.numel()
        for number, norm in enumerate(norms):
            norm.num_batches_tracked = self.counts[number]
        self.before, self.count_before = self.vector.clone(), self.counts.clone()
        self.number = {id(norm): number for number, norm in enumerate(norms)}
        self.calls = [0] * len(norms)
        self.take()

    def take(self) -> None:
        """Set the norms' momenta until :meth:`give_back`, to make buffers describe a single micro-batch."""
        for norm, _ in self.taken:
            norm.momentum = 1.0
        self.hooks = [norm.register_forward_pre_hook(self._called) for norm, _ in self.taken]

    def __deepcopy__(self, memo: dict[int, Any]) -> RunningStatistics:
        """Return this object itself, because its hooks ignore the norms of a copied model."""
        return self

    def _called(self, norm: Any, _: object) -> None:
        """Set the momentum of the k-th call in a micro-batch to 1 / k. Buffers then contain the mean."""
        number = self.number.get(id(norm))
        if number is None or not norm.training:
            return
        self.calls[number] += 1
        momentum = 1.0 / self.calls[number]
        if norm.momentum != momentum:  # setting an attribute of a module is slow
            norm.momentum = momentum

    def give_back(self) -> None:
        for hook in self.hooks:
            hook.remove()
        for norm, momentum in self.taken:
            norm.momentum = momentum

    def begin(self) -> None:
        """Save the running statistics. Call this before the step's first forward pass."""
        self.before.copy_(self.vector)
        self.count_before.copy_(self.counts)
        if self.others:
            self.others.begin()

    def begin_micro_batch(self) -> None:
        """Reset the count of calls. Call this before the forward pass of each micro-batch."""
        for (norm, _), calls in zip(self.taken, self.calls, strict=True):
            if calls > 1:  # a compiled pass starts with the momentum with which it was compiled
                norm.momentum = 1.0
        self.calls = [0] * len(self.calls)
        if self.others:
            self.others.begin_micro_batch()

    def keep(self, leaf: int | None) -> list[str]:
        """See :meth:`rankless.engine.forward_state.ForwardState.keep`."""
        return self.others.keep(leaf) if self.others else []

    def mark_called(self, norms: Iterable[nn.Module]) -> None:
        """Mark norms as called if their statistics were computed outside their own forward pass."""
        for norm in norms:
            if (number := self.number.get(id(norm))) is not None:
                self.calls[number] = 1

    def leaf(self) -> Tensor:
        """Return the last micro-batch's statistics, and whether it called each norm (0 or 1), (S,)."""
        if all(self.calls):
            return torch.cat([self.vector, self.all_called])
        called = torch.tensor([float(calls > 0) for calls in self.calls]).to(self.vector)
        return torch.cat([torch.where(self._each(called) > 0, self.vector, 0), called])

    def _each(self, values: Tensor) -> Tensor:
        """Repeat each norm's value for all of its entries in the vector."""
        return values.repeat_interleave(self.lengths, output_size=len(self.vector))

    def end(self, total: Tensor | None, *, has_new: bool = False) -> None:
        """Update the running statistics with ``total`` (S,), the sum of :meth:`leaf` over all micro-batches.

        If ``total`` is None, because the step was skipped, keep the previous statistics. ``has_new`` tells
        whether :meth:`keep` has returned any names on any rank.
        """
        if self.others:
            self.others.end(is_applied=total is not None, has_new=has_new)
        if total is None:
            self.vector.copy_(self.before)
            self.counts.copy_(self.count_before + 1)
            return
        sums, called = total.tensor_split([len(self.vector)])
        mean = (sums / self._each(called).clamp(min=1)).to(self.vector.dtype)
        entered = torch.lerp(self.before, mean, self.momentum)
        self.vector.copy_(torch.where(self._each(called) > 0, entered, self.before))
        self.counts.copy_(self.count_before + (called > 0))

    def undo(self) -> None:
        """Restore the running statistics from before the step."""
        self.vector.copy_(self.before)
        self.counts.copy_(self.count_before)
        if self.others:
            self.others.undo()


def _momentum(norm: _BatchNorm) -> float:
    if norm.momentum is None:
        raise UserError(
            "a batch norm of the model has momentum None (a cumulative mean); expected a number such as 0.1"
        )
    return norm.momentum
