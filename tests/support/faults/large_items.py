"""Examples whose batches fill a small /dev/shm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Batch:
    values: Tensor


class Large:
    def __len__(self) -> int:
        return 2

    def item(self, index: int, epoch: int) -> Tensor:
        return torch.zeros(1 << 20)


def collate(items: Sequence[Tensor]) -> Batch:
    return Batch(torch.stack(list(items)))
