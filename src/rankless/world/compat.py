"""Every name that PyTorch has renamed, each with the version, so that all supported releases run one code.

Nothing else in the package asks which release of PyTorch is installed.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.backends import cuda, cudnn, mkldnn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

# 2.13 renamed `all_gather_into_tensor` and deprecated the old name.
all_gather_single: Callable[..., Any] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)

# 2.13 renamed the switch of DistributedDataParallel that keeps it from broadcasting buffers.
NO_BUFFER_BROADCAST: dict[str, Any] = next(
    {name: False}
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)


def innermost_store(store: dist.Store) -> dist.Store:
    """The store without the prefixes that were put on it, such as torchrun's count of an agent's restarts."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


# Not public in any release: the store of the default process group.
default_store: Callable[[], dist.Store] = distributed_c10d._get_default_store


@contextmanager
def quiet_output() -> Iterator[None]:
    """Discard the standard output, including that of C++ libraries.

    2.9's gloo reports there that the ranks are connected, in the midst of a command's JSON.
    """
    try:
        output = os.dup(1)
    except OSError:  # it is closed
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
    """Set whether CUDA may round factors of float32 products to TF32; other devices never round.

    2.9 brought `fp32_precision`; the older switches are set as well, because code that reads them raises an
    error where the two disagree.

    Returns:
        What sets everything back.
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
        warnings.simplefilter("ignore")  # 2.9 advises to use `fp32_precision` instead, at reading as well
        try:
            return torch.get_float32_matmul_precision(), bool(cudnn.allow_tf32)
        except RuntimeError:  # somebody has set the two kinds of switches to different values
            return None


def _set_older_tf32(matmul: str, convolution: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some releases advise to use `fp32_precision` instead
        torch.set_float32_matmul_precision(matmul)
        cudnn.allow_tf32 = convolution
