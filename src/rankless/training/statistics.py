"""Running statistics of batch norms that do not depend on who worked through which micro-batch.

While a step runs, every norm has a momentum of 1, so that its buffers hold the statistics of the last
micro-batch alone: one leaf of the tree. After the step the mean over all micro-batches enters the running
statistics once. The buffers of the whole net are views of one vector, so a leaf is one copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rankless.errors import UserError


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Every batch norm that keeps running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


class RunningStatistics:
    """The running statistics of batch norms that are being trained; made after the move to the device.

    Args:
        norms: their buffers become views; their momentum is taken over. May be empty.
        device: where they are.
    """

    def __init__(self, norms: Sequence[_BatchNorm], device: torch.device) -> None:
        named = [(m, name) for m in norms for name in ("running_mean", "running_var")]
        buffers = [getattr(m, name) for m, name in named]
        self.taken = [(norm, _momentum(norm)) for norm in norms]
        nothing = torch.empty(0, device=device)
        self.vector = torch.cat(buffers) if buffers else nothing
        momenta = [torch.full_like(b, _momentum(m)) for (m, _), b in zip(named, buffers, strict=True)]
        self.momentum = torch.cat(momenta) if momenta else nothing
        self.counts = torch.stack([_tracked(m) for m in norms]) if norms else nothing.long()
        start = 0
        for (norm, name), buffer in zip(named, buffers, strict=True):
            setattr(norm, name, self.vector[start : start + buffer.numel()])
            start += buffer.numel()
        for number, norm in enumerate(norms):
            norm.num_batches_tracked = self.counts[number]
            norm.momentum = 1.0
        self.before, self.count_before = self.vector.clone(), self.counts.clone()

    def give_back(self) -> None:
        """Return their momenta to the norms, so that statistics of other norms can be made with them."""
        for norm, momentum in self.taken:
            norm.momentum = momentum

    def begin(self) -> None:
        """Remember the running statistics; call before the step's first forward pass."""
        self.before.copy_(self.vector)
        self.count_before.copy_(self.counts)

    def leaf(self) -> Tensor:
        """The statistics of the micro-batch that was just worked through, (S,)."""
        return self.vector

    def end(self, total: Tensor | None, micro_batches: int) -> None:
        """Let the step's statistics in.

        Args:
            total: (S,) the sum over all micro-batches; None keeps the old ones (a skipped step).
            micro_batches: how many leaves the total is of.
        """
        if total is None:
            self.vector.copy_(self.before)
        else:
            mean = (total / micro_batches).to(self.vector.dtype)
            self.vector.copy_(torch.lerp(self.before, mean, self.momentum))
        self.counts.copy_(self.count_before + 1)


def _momentum(norm: _BatchNorm) -> float:
    if norm.momentum is None:
        raise UserError(
            "a batch norm of the model has momentum None (a cumulative mean); expected a number such as 0.1"
        )
    return norm.momentum


def _tracked(norm: _BatchNorm) -> Tensor:
    return norm.num_batches_tracked if norm.num_batches_tracked is not None else torch.tensor(0)
