"""Settings of PyTorch that decide bits: threads and deterministic kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rankless.recipe import Recipe


@contextmanager
def computes_like(recipe: Recipe) -> Iterator[None]:
    """Inside, one operation has the recipe's number of threads, and ``reduce: exact`` uses deterministic kernels."""
    # Read by cuBLAS when it starts; without it PyTorch refuses deterministic matrix products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    fill, benchmark = torch.utils.deterministic.fill_uninitialized_memory, torch.backends.cudnn.benchmark
    exact = recipe.reduce == "exact"
    torch.set_num_threads(recipe.threads)
    torch.use_deterministic_algorithms(exact)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[assignment]  # costs, and we read none
    torch.backends.cudnn.benchmark = not exact
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[assignment]
        torch.backends.cudnn.benchmark = benchmark
