"""Functions whose names differ between the supported PyTorch releases, or which are private.

No other module depends on the installed release.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.backends import cuda, cudnn, mkldnn
from torch.distributed import distributed_c10d

# PyTorch 2.13 renamed `all_gather_into_tensor` and deprecated the old name.
all_gather_single: Callable[..., Any] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)


def innermost_store(store: dist.Store) -> dist.Store:
    """Return the store below all layers that add prefixes to keys, for example torchrun's restart count."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


# The store of the default process group is not public in any release.
default_store: Callable[[], dist.Store] = distributed_c10d._get_default_store


@contextmanager
def quiet_output() -> Iterator[None]:
    """Discard standard output within the block, including that of C++ libraries.

    Gloo in PyTorch 2.9 prints a message about connected ranks, which would corrupt a command's JSON.
    """
    try:
        output = os.dup(1)
    except OSError:  # standard output is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(output, 1)
        os.close(output)


_SETTINGS: list[Any] = [cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]  # type: ignore[attr-defined]


def set_tf32(allowed: bool) -> Callable[[], None]:
    """Set whether CUDA may round factors of float32 products to TF32, and return a function that undoes it.

    Other devices never use TF32. PyTorch 2.9 added ``fp32_precision``. The older switches are set as well,
    because reading them raises an error if the two disagree.
    """
    before = [setting.fp32_precision for setting in _SETTINGS]
    older = _older_tf32()
    on_cuda = "tf32" if allowed else "ieee"
    _set_older_tf32("high" if allowed else "highest", allowed)
    for setting in _SETTINGS:
        setting.fp32_precision = on_cuda if setting in (cuda.matmul, cudnn.conv, cudnn.rnn) else "ieee"  # type: ignore[attr-defined]

    def restore() -> None:
        if older:
            _set_older_tf32(*older)
        for setting, value in zip(_SETTINGS, before, strict=True):
            setting.fp32_precision = value

    return restore


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
