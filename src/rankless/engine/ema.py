"""Exponential moving average of the weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Ema:
    """A copy of a model whose weights are the moving average of the model's weights.

    The original model may later replace its parameters and buffers, but must keep their names. ``decay`` is
    the maximum fraction of the average that a step keeps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._pairs = list(zip(_slots(self.model), _slots(model), strict=True))

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after the step with index ``step``.

        The decay of a step is ``min(decay, (1 + step) / (10 + step))``.
        """
        decay = min(self.decay, (1 + step) / (10 + step))
        averaged, current, counts, counted = [], [], [], []
        for (mine, name), (theirs, _) in self._pairs:
            average: Tensor = mine[name]
            if average.is_floating_point() or average.is_complex():
                averaged.append(average)
                current.append(theirs[name])
            else:
                counts.append(average)
                counted.append(theirs[name])
        torch._foreach_lerp_(averaged, current, 1.0 - decay)
        if counts:
            torch._foreach_copy_(counts, counted)


def _slots(model: nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the dict and the key of each distinct tensor in the model's state dict.

    Building the state dict in every step would take milliseconds for a network with hundreds of layers.
    """
    seen: set[int] = set()
    for module in model.modules():
        persistent = {n: b for n, b in module._buffers.items() if n not in module._non_persistent_buffers_set}
        for tensors, names in ((module._parameters, module._parameters), (module._buffers, persistent)):
            for name in names:
                tensor = tensors[name]
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield tensors, name
