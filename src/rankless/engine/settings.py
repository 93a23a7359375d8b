"""PyTorch settings that affect the bits of results, such as threads, deterministic kernels and TF32."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rankless.recipe.schema import Recipe
from rankless.world.compat import set_tf32
from rankless.world.uncompiled import set_deterministic


@contextmanager
def computes_like(recipe: Recipe) -> Iterator[None]:
    """Use the recipe's number of threads in this block, and deterministic kernels if ``reduce`` is ``exact``.

    Float32 means IEEE single precision unless ``precision`` is ``tf32``, although PyTorch's default for
    convolutions on newer GPUs is TF32.
    """
    # cuBLAS reads this when it starts. Without it, PyTorch refuses deterministic matrix products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    switches: Any = torch.utils.deterministic  # type checkers do not see its properties
    fill, benchmark = switches.fill_uninitialized_memory, torch.backends.cudnn.benchmark
    exact = recipe.reduce == "exact"
    torch.set_num_threads(recipe.threads)
    set_deterministic(exact)
    switches.fill_uninitialized_memory = False  # filling takes time, and uninitialized memory is never read
    torch.backends.cudnn.benchmark = not exact
    restore_tf32 = set_tf32(recipe.precision == "tf32")
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        set_deterministic(deterministic)
        switches.fill_uninitialized_memory = fill
        torch.backends.cudnn.benchmark = benchmark
        restore_tf32()
