"""Bilinear sampling whose backward pass is deterministic on GPUs.

The backward pass of ``torch.nn.functional.grid_sample`` adds with atomic operations on CUDA, in any order.
Here ``index_select``, whose gradient has a deterministic kernel, reads the four pixels around each point. On
a CPU, ``grid_sample`` is deterministic and about twice as fast (``benchmarks/sampling.py``).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def bilinear(maps: Tensor, points: Tensor) -> Tensor:
    """Sample maps bilinearly, as ``grid_sample`` does with zero padding and ``align_corners=False``.

    Args:
        maps: the maps to sample, (N, C, H, W).
        points: x and y, from -1 to 1 between the outer edges of the map, (N, P, Q, 2).

    Returns:
        The samples, (N, C, P, Q).
    """
    count, channels, height, width = maps.shape
    x = ((points[..., 0] + 1) * width - 1) / 2
    y = ((points[..., 1] + 1) * height - 1) / 2
    left, top = x.detach().floor(), y.detach().floor()
    cells = maps.flatten(2).transpose(1, 2).reshape(-1, channels)  # (N · H · W, C)
    start = torch.arange(count, device=maps.device).view(-1, 1, 1) * (height * width)
    corners = []
    for column, row in ((left, top), (left + 1, top), (left, top + 1), (left + 1, top + 1)):
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        weight = (1 - (x - column).abs()) * (1 - (y - row).abs()) * inside
        cell = start + (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long()
        values = cells.index_select(0, cell.flatten()).view(*cell.shape, channels)
        corners.append(values * weight.unsqueeze(-1))
    first, second, third, fourth = corners
    return (first + second + third + fourth).permute(0, 3, 1, 2)


class DeterministicSampling(TorchFunctionMode):
    """A context manager that replaces ``grid_sample`` with :func:`bilinear` in this thread."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, or :func:`bilinear` instead of ``grid_sample``."""
        options = kwargs or {}
        is_bilinear = options == {"mode": "bilinear", "padding_mode": "zeros", "align_corners": False}
        # PyTorch itself refuses the backward pass of other modes if it has to be deterministic.
        if func is F.grid_sample and is_bilinear:
            return bilinear(*args)
        return func(*args, **options)
