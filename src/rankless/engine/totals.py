"""The ranks' exchange in a step: flags before it, sums after it."""

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
        stop: it got a signal: stop after this step.
        save: it is time for a checkpoint after this step; rank 0 alone looks at its clock.
    """

    stop: bool = False
    save: bool = False


@dataclass(frozen=True)
class Totals:
    """Sums over all micro-batches of a step, the same on every rank; still on the device.

    Attributes:
        scalars: (5 + P,) float64: loss, count, stop, save, replaced, and the parts.
        names: the P parts' names.
        statistics: (S,) sum of the micro-batches' batch-norm statistics.
        unreadable: images that this rank could not read; only this is not a sum.
        unused: per micro-batch of this rank, the parameters (numbers) that its loss did not depend on.
    """

    scalars: Tensor
    names: Sequence[str]
    statistics: Tensor
    unreadable: list[Unreadable]
    unused: Mapping[int, AbstractSet[int]]

    @property
    def count(self) -> Tensor:
        """The divisor of the summed gradients, a scalar."""
        return self.scalars[1]

    def read(self, norm: Tensor) -> Numbers:
        """Wait for the device, once, for everything that the host wants to know of the step."""
        read = torch.cat([self.scalars, norm.to(self.scalars).view(1)]).tolist()
        loss, count, stop, save, replaced, *values, length = read
        parts = dict(zip(self.names, values, strict=True))
        return Numbers(loss, count, int(stop), bool(save), int(replaced), parts, length)


@dataclass(frozen=True)
class Numbers:
    """The results of a step, read from the device; equal on every rank.

    Attributes:
        loss, count: the summed loss and what to divide it by.
        stop: how many ranks were asked to stop.
        save: whether rank 0 saves after this step because it is time to.
        replaced: how many images could not be read, counted each time.
        parts: named sums.
        gradient_norm: of the mean gradient, before it was clipped.
        skipped: whether the weights were left as they were (fp16 overflow).
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
        """The loss divided by its count; a count of zero counts as one."""
        return self.loss / (self.count or 1.0)

    def entry(self) -> dict[str, Any]:
        """The part of the journal's line that comes from the step's sums."""
        entry: dict[str, Any] = {
            "loss": self.mean_loss,
            "parts": {name: value / (self.count or 1.0) for name, value in self.parts.items()},
            "count": self.count,
        }
        if self.replaced:
            entry["replaced"] = self.replaced
        return entry | ({"skipped": True} if self.skipped else {"gradient_norm": self.gradient_norm})
