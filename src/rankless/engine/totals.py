"""The values that ranks exchange in a step: flags before it, sums after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankless.structures import Unreadable


@dataclass(frozen=True)
class Flags:
    """A rank's requests to all others in a step.

    Attributes:
        stop: stop after this step, because the rank got a signal.
        save: save a checkpoint after this step, because it is due; only rank 0 checks its clock.
    """

    stop: bool = False
    save: bool = False


@dataclass(frozen=True)
class Compared:
    """The micro-batches of a step whose results a rank compares with other ranks.

    Attributes:
        own: a micro-batch of this rank, whose gradients are added as usual.
        other: a micro-batch of another rank (of this rank if it is the only one), computed only to compare.
    """

    own: int
    other: int


@dataclass(frozen=True)
class Totals:
    """Sums over all micro-batches of a step, the same on every rank, still on the device.

    Attributes:
        scalars: (5 + P,) float64: loss, count, stop, save, replaced, and the P parts.
        names: names of the P parts.
        statistics: (S,) sum of the micro-batches' batch-norm statistics.
        unreadable: images that this rank could not read; not a sum.
        unused: for each micro-batch of this rank, the numbers of the parameters its loss did not depend on;
            not a sum.
        opinions: this rank's digests of the micro-batches ``own`` and ``other`` of :class:`Compared`; empty
            if none is compared, or if its images could not be read. Not a sum.
    """

    scalars: Tensor
    names: Sequence[str]
    statistics: Tensor
    unreadable: list[Unreadable]
    unused: Mapping[int, AbstractSet[int]]
    opinions: Sequence[str] = ("", "")

    @property
    def count(self) -> Tensor:
        """The divisor of the summed gradients, a scalar."""
        return self.scalars[1]

    def read(self, norm: Tensor) -> Numbers:
        """Return the step's numbers, waiting for the device once."""
        read = torch.cat([self.scalars, norm.to(self.scalars).view(1)]).tolist()
        loss, count, stop, save, replaced, *values, length = read
        parts = dict(zip(self.names, values, strict=True))
        return Numbers(loss, count, int(stop), bool(save), int(replaced), parts, length)


@dataclass(frozen=True)
class Numbers:
    """The results of a step, read from the device; equal on every rank.

    Attributes:
        loss, count: the summed loss and its divisor.
        stop: number of ranks that were asked to stop.
        save: whether a checkpoint is due after this step.
        replaced: number of images that could not be read, repeats included.
        parts: the named parts of the loss, summed.
        gradient_norm: the norm of the mean gradient before clipping.
        skipped: whether the weights were not updated (fp16 overflow).
    """

    loss: float
    count: float
    stop: int
    save: bool
    replaced: int
    parts: dict[str, float]
    gradient_norm: float
    skipped: bool = False

    @property
    def mean_loss(self) -> float:
        """Loss divided by its count; a count of zero counts as one."""
        return self.loss / (self.count or 1.0)

    def entry(self) -> dict[str, Any]:
        """Return the part of the journal's entry that comes from the step's sums."""
        entry: dict[str, Any] = {
            "loss": self.mean_loss,
            "parts": {name: value / (self.count or 1.0) for name, value in self.parts.items()},
            "count": self.count,
        }
        if self.replaced:
            entry["replaced"] = self.replaced
        return entry | ({"skipped": True} if self.skipped else {"gradient_norm": self.gradient_norm})
