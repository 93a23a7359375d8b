"""The only way to compute with a model: everything that decides the bits of its results.

:func:`computes_like` is entered once for a run or command, and :func:`forward_pass` for every call of the
model. Only data that is drawn outside of the latter has the same bits in a loader process. The instruction
set (:mod:`.instruction_set`) must be chosen before PyTorch is imported.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.backends import cuda, cudnn

from rankless.hardware.batch_invariant import batch_invariant
from rankless.hardware.precision import autocast
from rankless.hardware.process_settings import ONEDNN, set_deterministic

if TYPE_CHECKING:
    from rankless.recipe.schema import Recipe

_FLOAT32: list[Any] = [cuda.matmul, cudnn.conv, cudnn.rnn, *ONEDNN]  # type: ignore[attr-defined]


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
    try:
        with float32_like(recipe.precision):
            yield
    finally:
        torch.set_num_threads(threads)
        set_deterministic(deterministic)
        switches.fill_uninitialized_memory = fill
        torch.backends.cudnn.benchmark = benchmark


@contextmanager
def float32_like(precision: str) -> Iterator[None]:
    """Let CUDA round factors of float32 products to TF32 in this block only if ``precision`` is ``tf32``.

    Other devices never use TF32. PyTorch 2.9 added ``fp32_precision``. The older switches are set as well,
    because reading them raises an error if the two disagree.
    """
    before, older, allowed = [one.fp32_precision for one in _FLOAT32], _older_tf32(), precision == "tf32"
    _set_older_tf32("high" if allowed else "highest", allowed)
    for setting in _FLOAT32:
        setting.fp32_precision = "tf32" if allowed and setting not in ONEDNN else "ieee"
    try:
        yield
    finally:
        if older:
            _set_older_tf32(*older)
        for setting, value in zip(_FLOAT32, before, strict=True):
            setting.fp32_precision = value


def _older_tf32() -> tuple[str, bool] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reading them is also deprecated
        try:
            return torch.get_float32_matmul_precision(), bool(cudnn.allow_tf32)
        except RuntimeError:  # the two kinds of switches disagree
            return None


def _set_older_tf32(matmul: str, convolution: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some releases deprecate these switches
        torch.set_float32_matmul_precision(matmul)
        cudnn.allow_tf32 = convolution


@contextmanager
def forward_pass(precision: str, device: torch.device, *, training: bool) -> Iterator[None]:
    """Compute a model's output in ``precision``, with kernels whose results are right and reproducible.

    Unless ``training``, whose micro-batches have a fixed size, an image's output does not depend on the rest
    of its batch.
    """
    with autocast(precision, device), nullcontext() if training else batch_invariant(device):
        yield


_lock, _inside = threading.Lock(), 0


@contextmanager
def kept_casts() -> Iterator[None]:
    """Keep the weights that :func:`forward_pass` casts in this block. They must not change in it.

    All threads of a process share autocast's cache of cast weights, and every thread that leaves autocast
    clears it. This would change the number of casts in passes that are still running, and therefore the bits
    of their gradients. Here, only the last thread to leave the block clears the cache.
    """
    global _inside
    with _lock:
        _inside += 1
    torch.autocast_increment_nesting()  # only the outermost autocast clears the cache
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        with _lock:
            _inside -= 1
            if not _inside:
                torch.clear_autocast_cache()
