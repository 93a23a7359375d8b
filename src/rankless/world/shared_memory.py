"""Exchange between the ranks of one machine: they add each other's gradients where these lie.

A socket copies every byte several times, in small pieces. Here a rank copies what others are to add into
memory that all of them see, and only rings: one byte over the process group says that it lies there. Who adds
what, and in which order, is as in :mod:`rankless.world.exchange`.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rankless.world.exchange import Exchange, Pending, add_in_place
from rankless.world.tree import Fold, Node

LINE = 64  # bytes: vectors begin where a line of the processor's cache does


class SharedMemory:
    """The exchanges of a step between ranks that share memory; of each step the same, in the same order.

    Args:
        layout: who holds which part of the tree.
        memory: seen by all ranks: an area for each node of each rank, and one for the totals.
        length: of an area, in bytes.
    """

    def __init__(self, layout: Exchange, memory: mmap.mmap, length: int) -> None:
        self.layout, self.memory, self.length = layout, memory, length
        counts = [len(nodes) for nodes in layout.nodes]
        self.first = [sum(counts[:rank]) for rank in range(layout.size)]
        self.totals = sum(counts)
        self.used = 0

    def start(self, sums: Sequence[Tensor], result: Tensor) -> Pending:
        """Begin to add ``sums`` to those of the other ranks.

        Args:
            sums: as for :meth:`rankless.world.exchange.Exchange.start`, each of shape (N,); overwritten.
            result: where the total will be written, (N,).
        """
        place, self.used = self.used, self.used + _lines(result.nbytes)
        return _Ringing(self, place, sums, result)

    def begin_again(self) -> None:
        """The step's exchanges are finished: those of the next may lie where they did."""
        self.used = 0

    def view(self, area: int, place: int, like: Tensor) -> Tensor:
        """The vector, (N,), at ``place`` of an area, of the length and type of ``like``."""
        start = area * self.length + place
        return torch.frombuffer(self.memory, dtype=like.dtype, count=like.numel(), offset=start)


class _Ringing(Pending):
    """See :class:`rankless.world.exchange.Pending`.

    A rank begins the next step after all others have rung for the totals of this one, so after they have read
    its sums. It writes a total after all have rung for their sums, so after they have read the last step's.
    """

    def __init__(self, shared: SharedMemory, place: int, sums: Sequence[Tensor], result: Tensor) -> None:
        layout = shared.layout
        self.layout, self.shared, self.place, self.sums, self.result = layout, shared, place, sums, result
        shard = -(-result.numel() // layout.size)
        self.mine = slice(layout.rank * shard, (layout.rank + 1) * shard)
        for number, vector in enumerate(sums):
            area = shared.view(shared.first[layout.rank] + number, place, result)
            for others in (slice(self.mine.start), slice(self.mine.stop, None)):
                area[others].copy_(vector[others])
        one_each = [1] * layout.size
        self.bells = torch.zeros(2, layout.size, dtype=torch.uint8)
        self.work = layout.transport.all_to_all(self.bells[0], self.bells[1], one_each, one_each)

    def combine(self) -> None:
        """Add this rank's shard of all nodes in tree order, where the others can read it."""
        self._wait()
        nodes, total = list(self._nodes()), self._totals()[self.mine]
        left_to_do = len(nodes) - 1

        def add(left: Tensor, right: Tensor) -> Tensor:
            nonlocal left_to_do
            left_to_do -= 1
            return add_in_place(left, right) if left_to_do else torch.add(left, right, out=total)

        Fold(self.layout.micro_batches, add, nodes)
        self.work = self.layout.transport.all_gather(self.bells[0], self.bells[1, :1])

    def finish(self) -> None:
        """Wait until the total stands in the result."""
        self._wait()
        self.result.copy_(self._totals())

    def _nodes(self) -> Iterator[tuple[Node, Tensor]]:
        """This rank's shard of every node of all ranks, from left to right."""
        for rank, nodes in enumerate(self.layout.nodes):
            for number, node in enumerate(nodes):
                if rank == self.layout.rank:
                    yield node, self.sums[number][self.mine]
                else:
                    area = self.shared.first[rank] + number
                    yield node, self.shared.view(area, self.place, self.result)[self.mine]

    def _totals(self) -> Tensor:
        return self.shared.view(self.shared.totals, self.place, self.result)


def share(layout: Exchange, tensors: Iterable[Tensor]) -> SharedMemory | None:
    """Return memory for sums of such tensors that the ranks of a machine share; all ranks must call it.

    The pages are taken as they are written, and go with the last rank that holds them, however it ends.

    Returns:
        None where not all ranks are on one machine, where the tensors are not the CPU's, or where the system
        has no such memory or hides it from one of the ranks.
    """
    tensors = list(tensors)
    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
    if not (tensors and on_cpu and layout.transport.on_one_machine):
        return None
    length = sum(_lines(tensor.nbytes) for tensor in tensors)
    size = length * (sum(len(nodes) for nodes in layout.nodes) + 1)
    file, token = -1, secrets.randbits(62)  # of rank 0
    if layout.rank == 0:
        file = _anonymous_file(token, size)
    pid, number, token = (layout.gather(value)[0] for value in (os.getpid(), file, token))
    memory = _mapped(pid, number, token, size)
    seen = layout.gather(int(memory is not None))
    if file >= 0:
        os.close(file)
    return SharedMemory(layout, memory, length) if memory and all(seen) else None


def _name(token: int) -> str:
    return f"rankless-{token:x}"


def _anonymous_file(token: int, size: int) -> int:
    """A file of ``size`` bytes in no folder; -1 where there is no such thing."""
    if not hasattr(os, "memfd_create"):  # on macOS
        return -1
    try:
        file = os.memfd_create(_name(token))
    except OSError:
        return -1
    try:
        os.ftruncate(file, size)
    except OSError:  # a limit on the size of files
        os.close(file)
        return -1
    return file


def _mapped(pid: int, file: int, token: int, size: int) -> mmap.mmap | None:
    """The memory of a process's file, unless this process does not see that file."""
    path = Path(f"/proc/{pid}/fd/{file}")
    try:
        if _name(token) not in str(path.readlink()):  # the number means another process here
            return None
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return mmap.mmap(opened, size)
        finally:
            os.close(opened)
    except (OSError, ValueError, OverflowError):
        return None


def _lines(length: int) -> int:
    return -(-length // LINE) * LINE
