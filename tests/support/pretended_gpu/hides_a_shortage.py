"""A task whose model continues without the memory that it asks for, as PyTorch does in a convolution."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from support.small_task import Regression


class AsksForTooMuch(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        with suppress(torch.OutOfMemoryError):
            torch.empty(2**40, dtype=torch.uint8, device=values.device)
        return super().forward(values)


class HidesAShortage(Regression):
    def __init__(self, recipe: Any) -> None:
        pass

    def model(self) -> nn.Module:
        return AsksForTooMuch(4, 1)
