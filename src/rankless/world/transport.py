"""The transport of tensors between ranks: code above it is the same for processes and threads.

A world has one transport per rank. That of processes is here; that of threads is in
:mod:`rankless.world.threads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from rankless.world.compat import all_gather_single
from rankless.world.peer_waits import PeerWaits


class Work(Protocol):
    """A collective operation under way."""

    def wait(self) -> object:
        """Return once the result can be read and the sent tensors may be changed."""

    def is_completed(self) -> bool:
        """Whether :meth:`wait` would return at once."""


class Transport(Protocol):
    """Carries tensors between one rank and the others; all ranks begin collective operations in one order.

    Attributes:
        waits: how long the rank has waited for others.
        in_process: whether the ranks are threads of one process, which share what it has one of.
        on_one_machine: whether the ranks are processes that may share memory.
        group: what the rank's wrapper of data-parallel modules belongs to; None is the default group.
    """

    waits: PeerWaits
    in_process: bool
    on_one_machine: bool
    group: dist.ProcessGroup | None

    @property
    def name(self) -> str:
        """The transport's name in the record of the run."""

    @property
    def gathers_apart(self) -> bool:
        """Whether gathers are ordered separately: each rank may begin one before or after the rest."""

    def send(self, packed: Tensor, rank: int) -> None:
        """Send bytes, uint8 (N,) on the CPU, which nobody changes any more."""

    def receive(self, rank: int) -> Tensor:
        """Return the bytes that ``rank`` has sent, uint8 (N,)."""

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Write the values of rank ``source`` into a tensor of the same shape on every rank."""

    def all_to_all(
        self, received: Tensor, sent: Tensor, to_receive: Sequence[int], to_send: Sequence[int]
    ) -> Work:
        """Begin to send a piece of ``sent``, (S,), to every rank and to receive one of each, (R,).

        Args:
            received: where the pieces of the ranks will lie, in their order.
            sent: the pieces for the ranks, in their order.
            to_receive, to_send: their lengths.
        """

    def all_gather(self, gathered: Tensor, mine: Tensor) -> Work:
        """Begin to write every rank's ``mine``, (N,), into ``gathered``, (ranks * N,)."""


class GroupTransport:
    """The default process group of ``torch.distributed``, of which a process has one.

    Attributes:
        beside: a second group of the same ranks, for gathering; None where the default one does that, too.
    """

    def __init__(self) -> None:
        self.waits, self.in_process, self.on_one_machine = PeerWaits(), False, False
        self.group: dist.ProcessGroup | None = None
        self.beside: dist.ProcessGroup | None = None

    @property
    def gathers_apart(self) -> bool:
        """See :class:`Transport`."""
        return self.beside is not None

    def gather_apart(self, timeout: timedelta) -> None:
        """Gather over connections of its own from now on, where that is possible; all ranks must call it.

        Not with NCCL: its kernels for two groups would have to start in one order on all ranks.
        """
        if dist.get_backend() == "gloo" and dist.get_world_size() > 1:
            self.beside = cast(dist.ProcessGroup, dist.new_group(timeout=timeout))

    @property
    def name(self) -> str:
        """The backends, by kind of device."""
        return str(dist.get_backend_config())

    def send(self, packed: Tensor, rank: int) -> None:
        """See :meth:`Transport.send`; ``packed`` is uint8 (N,)."""
        dist.send(torch.tensor(packed.numel()), rank)
        dist.send(packed, rank)

    def receive(self, rank: int) -> Tensor:
        """See :meth:`Transport.receive`; uint8 (N,)."""
        length = torch.tensor(0)
        dist.recv(length, rank)
        packed = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(packed, rank)
        return packed

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """See :meth:`Transport.broadcast`; ``tensor`` has any shape."""
        dist.broadcast(tensor, source)

    def all_to_all(
        self, received: Tensor, sent: Tensor, to_receive: Sequence[int], to_send: Sequence[int]
    ) -> Work:
        """See :meth:`Transport.all_to_all`; ``received`` is (R,), ``sent`` (S,)."""
        work = dist.all_to_all_single(
            received, sent, output_split_sizes=[*to_receive], input_split_sizes=[*to_send], async_op=True
        )
        return cast(Work, work)

    def all_gather(self, gathered: Tensor, mine: Tensor) -> Work:
        """See :meth:`Transport.all_gather`; ``gathered`` is (ranks * N,), ``mine`` (N,)."""
        return cast(Work, all_gather_single(gathered, mine, group=self.beside, async_op=True))


PROCESS_GROUP = GroupTransport()
"""Of this process."""
