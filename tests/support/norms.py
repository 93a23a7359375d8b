"""Batch norms whose numbers show a missing or misplaced one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def with_statistics(model: Any) -> Any:
    """Fill the norms from a generator of its own, and set evaluation mode."""
    rng = torch.Generator().manual_seed(2)
    for one in model.modules():
        if isinstance(one, nn.BatchNorm2d):
            nn.init.uniform_(one.weight, 0.5, 1.5, generator=rng)
            nn.init.uniform_(one.bias, -0.5, 0.5, generator=rng)
            nn.init.uniform_(one.running_mean, -0.5, 0.5, generator=rng)
            nn.init.uniform_(one.running_var, 0.5, 1.5, generator=rng)
    return model.eval()
