"""What carries tensors between ranks: everything above it is the same whether they are processes or threads.

A world has one transport per rank. That of processes is here; that of threads is in
:mod:`rankless.world.threads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from rankless.world.compat import all_gather_single
from rankless.world.peer_waits import PeerWaits


class Work(Protocol):
    """A collective operation under way."""

    def wait(self) -> object:
        """Return when its result can be read and what was sent may be changed."""


class Transport(Protocol):
    """Carries tensors between one rank and the others; all ranks begin collective operations in one order.

    Attributes:
        waits: how long the rank has waited for others.
        in_process: whether the ranks are threads of one process, which share what it has one of.
        group: what the rank's wrapper of data-parallel modules belongs to; None is the default group.
    """

    waits: PeerWaits
    in_process: bool
    group: dist.ProcessGroup | None

    @property
    def name(self) -> str:
        """What it is called in the record of the run."""

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
    """The default process group of ``torch.distributed``, of which a process has one."""

    def __init__(self) -> None:
        self.waits, self.in_process = PeerWaits(), False
        self.group: dist.ProcessGroup | None = None

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
        return cast(Work, all_gather_single(gathered, mine, async_op=True))


PROCESS_GROUP = GroupTransport()
"""Of this process."""
