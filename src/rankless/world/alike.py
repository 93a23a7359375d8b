"""Tensors that must be the same on every rank, made so."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rankless.world.process_group import World


def copy_from_first(tensors: Iterable[Tensor], world: World) -> None:
    """Rank 0's values in the same tensors of every rank; on the CPU, of the same shapes everywhere."""
    for tensor in tensors:
        values = tensor.detach().contiguous().clone()
        world.transport.broadcast(values.view(-1).view(torch.uint8), 0)
        tensor.detach().copy_(values)
