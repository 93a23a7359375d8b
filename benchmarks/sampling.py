"""Time bilinear sampling by ``grid_sample`` and by four reads per point, forward and backward, on this CPU.

    python benchmarks/sampling.py

The shapes are those of one decoder layer of RT-DETR at 640 × 640 with 4 images and 500 queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from rankless.models.detectors.bilinear_sampling import bilinear

REPEATS = 5


def grid_sample(maps: Tensor, points: Tensor) -> Tensor:
    """Return torch's own sampling, as transformers calls it."""
    return F.grid_sample(maps, points, mode="bilinear", padding_mode="zeros", align_corners=False)


def seconds(sample: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Return the least time of a forward and backward pass."""
    rng = torch.Generator().manual_seed(0)
    maps = [torch.randn(32, 32, side, side, generator=rng, requires_grad=True) for side in (80, 40, 20)]
    points = (torch.rand(32, 500, 4, 2, generator=rng) * 2 - 1).requires_grad_()
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        torch.stack([sample(one, points).square().sum() for one in maps]).sum().backward()
        found.append(time.perf_counter() - began)
    return min(found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, sample in (("grid_sample", grid_sample), ("four reads", bilinear)):
        print(f"{name:12} {1000 * seconds(sample):6.0f} ms")
