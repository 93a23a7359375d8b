"""The interface for sending tensors between ranks, as processes or threads.

Every rank has one transport. This module contains the transport for processes, and
:mod:`rankless.world.thread_transport` the one for threads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from rankless.world.compat import all_gather_single, default_store


class PeerWaits:
    """Measures the time that a rank waits for other ranks.

    ``depth`` is the number of nested waits in progress. Waits in NCCL are not included, because they block
    the GPU instead of the host.
    """

    def __init__(self) -> None:
        self.seconds, self.depth = 0.0, 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the duration of the block as a wait for other ranks."""
        self.depth += 1
        began = time.perf_counter()
        try:
            yield
        finally:
            self.depth -= 1
            self.seconds += time.perf_counter() - began


class Work(Protocol):
    """A collective operation that has been started."""

    def wait(self) -> object:
        """Wait until the result is ready and the sent tensors may be changed."""

    def is_completed(self) -> bool:
        """Check whether :meth:`wait` would return immediately."""


class Transport(Protocol):
    """The transport of one rank. All ranks must start collective operations in the same order.

    Attributes:
        waits: counter of the time that this rank waits for others.
        in_process: whether the ranks are threads of one process.
        on_one_machine: whether the ranks are processes on one machine, which can share memory.
    """

    waits: PeerWaits
    in_process: bool
    on_one_machine: bool

    @property
    def name(self) -> str:
        """Name of the transport in the run's records."""

    @property
    def store(self) -> dist.Store:
        """A store that all ranks share, for values that no rank waits for."""

    @property
    def gathers_apart(self) -> bool:
        """Whether ranks may start gathers in a different order relative to other operations."""

    def send(self, packed: Tensor, rank: int) -> None:
        """Send bytes, uint8 (N,) on the CPU. They must not change afterwards."""

    def receive(self, rank: int) -> Tensor:
        """Wait for bytes from ``rank`` and return them, uint8 (N,)."""

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Copy the tensor of rank ``source`` into the tensor of every rank, all of the same shape."""

    def all_to_all(
        self, received: Tensor, sent: Tensor, to_receive: Sequence[int], to_send: Sequence[int]
    ) -> Work:
        """Start sending one piece of ``sent`` (S,) to every rank and receiving one piece from every rank.

        The received pieces are written to ``received`` (R,) in rank order. ``to_receive`` and ``to_send`` are
        the lengths of the pieces.
        """

    def all_gather(self, gathered: Tensor, mine: Tensor) -> Work:
        """Start gathering every rank's ``mine`` (N,) into ``gathered`` (ranks * N,)."""


class GroupTransport:
    """The transport over the default process group of ``torch.distributed``.

    ``beside`` is a second group of the same ranks for gathers, or None to use the default group.
    """

    def __init__(self) -> None:
        self.waits, self.in_process, self.on_one_machine = PeerWaits(), False, False
        self.beside: dist.ProcessGroup | None = None

    @property
    def store(self) -> dist.Store:
        return default_store()

    @property
    def gathers_apart(self) -> bool:
        return self.beside is not None

    def gather_apart(self, timeout: timedelta) -> None:
        """Use separate connections for gathers over gloo. All ranks must call this.

        With NCCL, all ranks need the same order of kernels, so a second group would not help.
        """
        if dist.get_backend() == "gloo" and dist.get_world_size() > 1:
            self.beside = cast(dist.ProcessGroup, dist.new_group(timeout=timeout))

    @property
    def name(self) -> str:
        return str(dist.get_backend_config())

    def send(self, packed: Tensor, rank: int) -> None:
        dist.send(torch.tensor(packed.numel()), rank)
        dist.send(packed, rank)

    def receive(self, rank: int) -> Tensor:
        length = torch.tensor(0)
        dist.recv(length, rank)
        packed = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(packed, rank)
        return packed

    def broadcast(self, tensor: Tensor, source: int) -> None:
        dist.broadcast(tensor, source)

    def all_to_all(
        self, received: Tensor, sent: Tensor, to_receive: Sequence[int], to_send: Sequence[int]
    ) -> Work:
        work = dist.all_to_all_single(
            received, sent, output_split_sizes=[*to_receive], input_split_sizes=[*to_send], async_op=True
        )
        return cast(Work, work)

    def all_gather(self, gathered: Tensor, mine: Tensor) -> Work:
        return cast(Work, all_gather_single(gathered, mine, group=self.beside, async_op=True))


PROCESS_GROUP = GroupTransport()
"""The transport over the default process group of this process."""
