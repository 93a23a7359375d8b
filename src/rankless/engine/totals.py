"""The values that the ranks exchange in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankless.errors import UserError
from rankless.structures import LossSum, Unreadable

_FLAGS = slice(2, 6)  # stop, save, replaced, new; preceded by loss and count, followed by the loss's parts


@dataclass(frozen=True)
class Flags:
    """A rank's requests to all ranks: to ``stop`` after this step, or to ``save`` (only from rank 0)."""

    stop: bool = False
    save: bool = False


@dataclass(frozen=True)
class Compared:
    """The micro-batches of a step whose results a rank compares with those of other ranks.

    The gradients of its ``own`` micro-batch are added as usual. The ``other`` one is computed only for the
    comparison.
    """

    own: int
    other: int


@dataclass(frozen=True)
class Totals:
    """Sums over all micro-batches of a step, the same on every rank, and data of this rank alone.

    Attributes:
        scalars: loss, count, stop, save, replaced, new and P parts of the loss, float64 (6 + P,).
        names: names of the P parts.
        statistics: sum of the batch-norm statistics of the micro-batches, (S,).
        unreadable: images that this rank could not read.
        unused: for each micro-batch of this rank, the indices of the parameters that its loss does not use.
        opinions: this rank's digests of the micro-batches ``own`` and ``other`` of :class:`Compared`. A
            digest is empty if nothing is compared or an image could not be read.
    """

    scalars: Tensor
    names: Sequence[str]
    statistics: Tensor
    unreadable: list[Unreadable]
    unused: Mapping[int, AbstractSet[int]]
    opinions: Sequence[str] = ("", "")

    @property
    def count(self) -> Tensor:
        """Number by which the summed gradients are divided, a scalar."""
        return self.scalars[1]

    def read(self, norm: Tensor) -> Numbers:
        """Return the step's numbers, including the gradient's ``norm``, after waiting for the device once."""
        read = torch.cat([self.scalars, norm.to(self.scalars).view(1)]).tolist()
        loss, count, stop, save, replaced, new, *values, length = read
        parts = dict(zip(self.names, values, strict=True))
        return Numbers(loss, count, int(stop), bool(save), int(replaced), parts, length, has_new=bool(new))


class Packer:
    """Packs one micro-batch's contributions to the totals into a vector, and unpacks their sum.

    The vector is float64: loss, count, flags, the parts of the loss by name, and S statistics.
    """

    def __init__(self, task: object) -> None:
        self.task = task
        self.names: list[str] | None = None

    def pack(self, loss: LossSum, flags: Flags, replaced: int, new: bool, statistics: Tensor) -> Tensor:
        """Return the vector of a micro-batch, (6 + P + S,)."""
        names = sorted(loss.parts)
        if self.names not in (None, names):
            raise UserError(
                f"loss() of the task {type(self.task).__name__} returned the parts {names}, but "
                f"{self.names} for an earlier micro-batch; expected the same names for every micro-batch"
            )
        self.names = names
        requests = [float(flags.stop), float(flags.save), float(replaced), float(new)]
        device = statistics.device
        if any(requests):
            middle = torch.tensor(requests, dtype=torch.float64).to(device, non_blocking=True)
        else:  # almost always, and nothing has to be copied to a GPU
            middle = torch.zeros(len(requests), dtype=torch.float64, device=device)
        scalars = [loss.sum.detach(), loss.count, *(loss.parts[name] for name in names)]
        vector = torch.stack([one.to(device, torch.float64, non_blocking=True) for one in scalars])
        first, last = vector.tensor_split([_FLAGS.start])
        return torch.cat([first, middle, last, statistics.to(torch.float64)])

    @staticmethod
    def without_flags(vector: Tensor) -> Tensor:
        """Return the numbers that a micro-batch determines, on whichever rank it was computed."""
        return torch.cat([vector[: _FLAGS.start], vector[_FLAGS.stop :]])

    def totals(
        self,
        vector: Tensor,
        unreadable: list[Unreadable],
        unused: Mapping[int, AbstractSet[int]],
        opinions: Sequence[str] = ("", ""),
    ) -> Totals:
        """Return the totals, given the sum of all vectors; see :class:`Totals` for the other arguments."""
        names = self.names or []
        scalars, statistics = vector.tensor_split([_FLAGS.stop + len(names)])
        return Totals(scalars, names, statistics, unreadable, unused, opinions)


@dataclass(frozen=True)
class Numbers:
    """The results of a step, read from the device and equal on every rank.

    Attributes:
        loss, count: the summed loss and its divisor.
        stop: number of ranks that have received a request to stop.
        save: whether a checkpoint is due after this step.
        replaced: number of images that could not be read, including repeats.
        parts: the summed parts of the loss by name.
        gradient_norm: norm of the mean gradient before clipping.
        skipped: whether the update was skipped because of an fp16 overflow.
        has_new: whether a forward pass has changed an untrained tensor that no earlier one has changed.
    """

    loss: float
    count: float
    stop: int
    save: bool
    replaced: int
    parts: dict[str, float]
    gradient_norm: float
    skipped: bool = False
    has_new: bool = False

    @property
    def mean_loss(self) -> float:
        """Loss divided by its count, or by one if the count is zero."""
        return self.loss / (self.count or 1.0)

    def entry(self) -> dict[str, Any]:
        """Return these numbers as entries of the step's line in the journal."""
        entry: dict[str, Any] = {
            "loss": self.mean_loss,
            "parts": {name: value / (self.count or 1.0) for name, value in self.parts.items()},
            "count": self.count,
        }
        if self.replaced:
            entry["replaced"] = self.replaced
        return entry | ({"skipped": True} if self.skipped else {"gradient_norm": self.gradient_norm})
