"""Every name that PyTorch has renamed, each with the version, so that all supported releases run one code.

Nothing else in the package asks which release of PyTorch is installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
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
