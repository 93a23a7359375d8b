"""Bilinear sampling whose backward pass is deterministic on GPUs.

On CUDA, the backward pass of ``torch.nn.functional.grid_sample`` adds with atomic operations in arbitrary
order. Instead, this module reads the four pixels around each point with ``index_select``, whose gradient has
a deterministic kernel. On a CPU, ``grid_sample`` is deterministic and about twice as fast.
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
        maps: feature maps, (N, C, H, W).
        points: x and y of the points to sample, (N, P, Q, 2), where -1 and 1 are the edges of the map.

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
    """A context manager that replaces ``grid_sample`` with :func:`bilinear` in the current thread."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        is_bilinear = options == {"mode": "bilinear", "padding_mode": "zeros", "align_corners": False}
        # In deterministic mode, PyTorch itself refuses the backward pass of other sampling modes.
        if func is F.grid_sample and is_bilinear:
            return bilinear(*args)
        return func(*args, **options)
