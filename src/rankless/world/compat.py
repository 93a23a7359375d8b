"""Functions whose names differ between the supported PyTorch releases, or which are private.

No other module depends on the installed release.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
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
