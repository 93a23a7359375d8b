"""The exponential moving average of the weights."""

from __future__ import annotations

import copy

import torch
from torch import nn


class Ema:
    """A second model whose weights follow the first one's.

    Args:
        model: followed; copied now.
        decay: how much of the average stays in a step, at most.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    def update(self, model: nn.Module, step: int) -> None:
        """Move towards ``model`` after step ``step`` (from 0).

        The decay of a step is ``min(decay, (1 + step) / (10 + step))``.
        """
        decay = min(self.decay, (1 + step) / (10 + step))
        averaged, current = list(self.model.state_dict().values()), list(model.state_dict().values())
        pairs = [(a, b) for a, b in zip(averaged, current, strict=True) if a.is_floating_point()]
        torch._foreach_lerp_([a for a, _ in pairs], [b for _, b in pairs], 1.0 - decay)
        for a, b in zip(averaged, current, strict=True):
            if not a.is_floating_point():
                a.copy_(b)
