"""Tensors that must be the same on every rank, made so."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


def copy_from_first(tensors: Iterable[Tensor]) -> None:
    """Rank 0's values in the same tensors of every rank; on the CPU, of the same shapes everywhere."""
    for tensor in tensors:
        values = tensor.detach().contiguous().clone()
        dist.broadcast(values.view(-1).view(torch.uint8), src=0)
        tensor.detach().copy_(values)
