"""The ranks that train together and their process group, as described by torchrun's environment variables.

A process without a launcher is a world of size 1. Other modules treat it like any other world.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from rankless.errors import UserError, counted
from rankless.hardware.network import interface_towards
from rankless.world.compat import innermost_store, quiet_output
from rankless.world.keepalive import exit_if_broken, listening, reject_new_connections, watch_connections
from rankless.world.objects import pack, unpack
from rankless.world.rendezvous import (
    job_store,
    join_store,
    loopback,
    meet,
    on_interface,
    private_store,
    ranks_store,
)
from rankless.world.secret import prove, shared_key
from rankless.world.transport import PROCESS_GROUP, Transport
from rankless.world.tree import own_micro_batches

# Long enough for the slowest scoring on rank 0. Lost peers are detected sooner, because a dead process closes
# its connections and TCP keepalive detects disconnected machines (world/keepalive).
TIMEOUT = timedelta(minutes=30)
# Stores are kept alive, because a file store's destructor writes to its file and aborts if the disk is full.
_KEPT_ALIVE: list[dist.Store] = []


@dataclass(frozen=True)
class World:
    """The ranks that train together, as seen from one of them.

    Attributes:
        rank: index of this rank, from 0 to ``size - 1``.
        size: number of ranks.
        device: the device of this rank.
        local_rank: index of this rank on its machine.
        launcher_store: the launcher's store, which outlives the ranks, or None if it has no store.
        local_size: number of ranks on this machine.
        inline: whether training runs in the caller's process.
        transport: sends tensors to the other ranks.
    """

    rank: int
    size: int
    device: torch.device
    local_rank: int = 0
    launcher_store: dist.Store | None = field(default=None, compare=False, repr=False)
    local_size: int = 1
    inline: bool = False
    transport: Transport = field(default=PROCESS_GROUP, compare=False, repr=False)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints messages and writes files."""
        return self.rank == 0

    @property
    def backend(self) -> str:
        """Name of the backend that sends tensors between the ranks."""
        return self.transport.name

    def own_micro_batches(self, micro_batches: int) -> range:
        """Return this rank's micro-batches of a step. Raise a ``UserError`` if a rank would have none."""
        if self.size > micro_batches:
            raise UserError(
                f"a step has only {counted(micro_batches, 'micro-batch', 'micro-batches')} for {self.size} "
                f"devices; use at most {counted(micro_batches, 'device')}, a larger batch.images or a "
                "smaller batch.micro"
            )
        return own_micro_batches(micro_batches, self.rank, self.size)

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's ``value`` in rank order on rank 0, and None on the other ranks."""
        packed = None if self.is_first else pack(value)
        with self.transport.waits.waiting():
            if packed is not None:
                self.transport.send(packed, 0)
                return None
            received = [self.transport.receive(rank) for rank in range(1, self.size)]
        return [value, *map(unpack, received)]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the ``value`` of rank ``source`` on every rank."""
        if self.size == 1:
            return value
        is_source = self.rank == source
        packed = pack(value) if is_source else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor(packed.numel())
        with self.transport.waits.waiting():
            self.transport.broadcast(length, source)
            if not is_source:
                packed = torch.empty(int(length), dtype=torch.uint8)
            self.transport.broadcast(packed, source)
        return value if is_source else unpack(packed)

    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's ``value`` in rank order, on every rank."""
        gathered: list[Any] = self.broadcast(self.gather(value))
        return gathered

    def recall(self, key: str) -> str:
        """Return the text that :meth:`remember` stored, possibly before a restart, or ""."""
        store = self.launcher_store
        return store.get(key).decode() if store is not None and store.check([key]) else ""

    def remember(self, key: str, text: str) -> None:
        """Store a text for restarted ranks if the launcher has a store that outlives them."""
        if self.launcher_store is not None:
            self.launcher_store.set(key, text)

    def barrier(self) -> None:
        """Wait until every rank has called this method."""
        # Objects use the CPU's backend. An NCCL barrier would bind a GPU before the rank has selected one.
        self.gather(None)
        self.broadcast(None)


class LostPeerError(RuntimeError):
    """Raised if another rank has exited or does not respond."""


def is_lost_peer(error: Exception) -> bool:
    """Check whether a collective operation failed because another rank was lost."""
    lost = LostPeerError | dist.DistNetworkError | dist.DistBackendError | dist.DistStoreError
    if isinstance(error, lost):
        return True
    signs = ("onnection closed", "onnection reset", "roken pipe", "Timed out", "timeout", "gloo", "NCCL")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def ranks_here() -> int:
    """Return the number of ranks on this machine according to ``LOCAL_WORLD_SIZE``, at least one."""
    return max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)


def is_joined() -> bool:
    """Check whether this process has joined a process group."""
    return dist.is_available() and dist.is_initialized()


@contextmanager
def join(meeting: Path | None = None, *, inline: bool = False) -> Iterator[World]:
    """Join the process group that the environment variables describe, or form a world of size 1.

    ``meeting`` is the rendezvous file of ranks that Rankless has started, or None to use ``MASTER_ADDR`` and
    ``MASTER_PORT``. ``inline`` means that training runs in the caller's process.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = _device()
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))
    here = ranks_here()
    alone = meeting is not None or here == size
    launcher_store: dist.Store | None = None
    if meeting is None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # as with torchrun
        launcher_store = join_store(address, port, TIMEOUT)
    with on_interface(loopback() if alone else interface_towards(address)):
        outer = None
        if size == 1:
            store: dist.Store = dist.HashStore()
        elif meeting is not None:
            store = dist.FileStore(str(meeting), size)
        else:
            outer = launcher_store or ranks_store(address, port, rank, alone, TIMEOUT)
            store = meet(outer, rank, size, TIMEOUT)
            store = private_store(store, rank, size) if alone else store
        _KEPT_ALIVE.append(store)
        backend, key = _backend(store, rank, size, _card(device)), shared_key(store, rank)
        if outer is not None and not alone and "nccl" in backend:  # NCCL's threads must not call into Python
            store = dist.PrefixStore(key.hex(), innermost_store(outer))
        before = listening()
        with quiet_output():
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        try:
            _prove(cast(dist.ProcessGroup, dist.group.WORLD), key)
            with quiet_output():
                PROCESS_GROUP.gather_apart(TIMEOUT)
            if PROCESS_GROUP.beside is not None:
                _prove(PROCESS_GROUP.beside, key)
            reject_new_connections(before)
            PROCESS_GROUP.on_one_machine = alone and size > 1
            watch_connections(all_are_read=True)  # only of gloo and the store, because NCCL connects later
            launcher_store = None if launcher_store is None else job_store(launcher_store)
            local_rank = int(os.environ.get("LOCAL_RANK", str(rank)))
            world = World(rank, size, device, local_rank, launcher_store, here, inline)
            with nullcontext() if alone else exit_if_broken(PROCESS_GROUP):
                yield world
        finally:
            PROCESS_GROUP.beside, PROCESS_GROUP.on_one_machine = None, False
            dist.destroy_process_group()


def _prove(group: dist.ProcessGroup, key: bytes) -> None:
    try:
        prove(group, key)
    except RuntimeError as error:
        raise LostPeerError(
            f"rank {group.rank()} is connected, but another rank does not respond; it may hang or have "
            "exited, or another user may have connected first"
        ) from error


def _device() -> torch.device:
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not cards or os.environ.get("RANKLESS_CPU"):
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % cards)
    torch.cuda.set_device(device)
    return device


def _card(device: torch.device) -> str:
    """Return the UUID of a GPU that NCCL can use, or "" for other devices."""
    usable = device.type != "cpu" and dist.is_nccl_available()
    return str(torch.cuda.get_device_properties(device).uuid) if usable else ""


def _backend(store: dist.Store, rank: int, size: int, card: str) -> str:
    """Return backends that include NCCL if each rank has its own GPU, otherwise ``gloo``.

    Ranks compare the UUIDs of their GPUs, because a cluster may make only one GPU visible to each rank.
    """
    if not card:
        return "gloo"
    store.set(f"card/{rank}", card)
    cards = {store.get(f"card/{other}") for other in range(size)}
    return "cpu:gloo,cuda:nccl" if len(cards) == size else "gloo"
