"""Ranks that are threads of one process and exchange tensors in memory.

:mod:`rankless.world.exchange` uses the same order of additions on this transport as on a process group.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rankless.world.process_group import LostPeerError, World
from rankless.world.transport import PeerWaits, Work


@dataclass
class _Round:
    """A collective operation, with the tensors that ranks have posted and the ranks that have read them."""

    posted: dict[int, Any] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)


class Meeting:
    """Lets the threads of one process, each of which is a rank, exchange tensors."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.store = dist.HashStore()
        self._changed = threading.Condition()
        self._rounds: dict[int, _Round] = defaultdict(_Round)
        self._mail: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self._gone: set[int] = set()

    def leave(self, rank: int) -> None:
        """Mark a rank as lost. Ranks that wait for it raise an error."""
        with self._changed:
            self._gone.add(rank)
            self._changed.notify_all()

    def post(self, number: int, rank: int, value: Any) -> None:
        with self._changed:
            self._rounds[number].posted[rank] = value
            self._changed.notify_all()

    def take(self, number: int, rank: int, take: Callable[[dict[int, Any]], None]) -> None:
        """Call ``take`` with the inputs of all ranks, and return once every rank has taken its inputs."""
        with self._changed:
            round_ = self._rounds[number]
        everyone = set(range(self.size))
        self._wait(lambda: everyone - round_.posted.keys())
        with torch.no_grad():
            take(round_.posted)
        with self._changed:
            round_.taken.add(rank)
            if round_.taken == everyone:
                del self._rounds[number]
                self._changed.notify_all()
        self._wait(lambda: everyone - round_.taken)

    def send(self, source: int, target: int, packed: Tensor) -> None:
        with self._changed:
            self._mail[source, target].append(packed)
            self._changed.notify_all()

    def receive(self, source: int, target: int) -> Tensor:
        """Wait for the oldest unread bytes from ``source`` to ``target``, and return them."""
        with self._changed:
            mail = self._mail[source, target]
        self._wait(lambda: set() if mail else {source})
        return mail.popleft()

    def _wait(self, missing: Callable[[], set[int]]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not missing() or missing() & self._gone)
            if lost := missing() & self._gone:
                raise LostPeerError(f"rank {min(lost)} has exited")


class _Exchanged:
    """A started operation. See :class:`rankless.world.transport.Work`."""

    def __init__(
        self, meeting: Meeting, number: int, rank: int, take: Callable[[dict[int, Any]], None]
    ) -> None:
        self._meeting, self._number, self._rank, self._take = meeting, number, rank, take

    def wait(self) -> None:
        self._meeting.take(self._number, self._rank, self._take)

    def is_completed(self) -> bool:
        return False  # completed in wait


class ThreadTransport:
    """The transport between threads. See :class:`rankless.world.transport.Transport`."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.waits, self.in_process = PeerWaits(), True
        self.on_one_machine = self.gathers_apart = False
        self.name, self.store = "threads", meeting.store
        self._meeting, self._rank = meeting, rank
        self._begun = 0  # number of operations so far, the same on all ranks

    def send(self, packed: Tensor, rank: int) -> None:
        self._meeting.send(self._rank, rank, packed)

    def receive(self, rank: int) -> Tensor:
        return self._meeting.receive(rank, self._rank)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        def take(posted: dict[int, Tensor]) -> None:
            if self._rank != source:
                tensor.copy_(posted[source])

        self._begin(tensor, take).wait()

    def all_to_all(
        self, received: Tensor, sent: Tensor, to_receive: Sequence[int], to_send: Sequence[int]
    ) -> Work:
        def take(posted: dict[int, Sequence[Tensor]]) -> None:
            for rank, piece in enumerate(received.split(list(to_receive))):
                piece.copy_(posted[rank][self._rank])

        return self._begin(sent.split(list(to_send)), take)

    def all_gather(self, gathered: Tensor, mine: Tensor) -> Work:
        def take(posted: dict[int, Tensor]) -> None:
            for rank, piece in enumerate(gathered.split(mine.numel())):
                piece.copy_(posted[rank])

        return self._begin(mine, take)

    def _begin(self, value: Any, take: Callable[[dict[int, Any]], None]) -> Work:
        self._begun += 1
        self._meeting.post(self._begun, self._rank, value)
        return _Exchanged(self._meeting, self._begun, self._rank, take)


def thread_ranks(meeting: Meeting, devices: Sequence[torch.device]) -> list[World]:
    """Return one rank per device in this process. Each of them must run in a separate thread."""
    return [
        World(
            rank,
            len(devices),
            device,
            rank,
            local_size=len(devices),
            inline=True,
            transport=ThreadTransport(meeting, rank),
        )
        for rank, device in enumerate(devices)
    ]
