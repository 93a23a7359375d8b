"""The exchange of gradients between ranks on one machine through shared memory.

A socket copies every byte several times. Here, a rank copies its sums into shared memory only once, and
signals this with one byte over the process group. The shards and the order of additions are the same as in
:mod:`rankless.world.exchange`.
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

LINE = 64  # bytes of a cache line, the alignment of vectors


class SharedMemory:
    """The exchanges of a step through shared memory. Every step must have the same sequence of exchanges.

    The memory has areas of ``length`` bytes, one for each node of each rank and one for the totals.
    """

    def __init__(self, layout: Exchange, memory: mmap.mmap, length: int) -> None:
        self.layout, self.memory, self.length = layout, memory, length
        counts = [len(nodes) for nodes in layout.nodes]
        self.first = [sum(counts[:rank]) for rank in range(layout.size)]
        self.totals = sum(counts)
        self.used = 0

    def start(self, sums: Sequence[Tensor], result: Tensor) -> Pending:
        """Start adding ``sums`` to the sums of the other ranks, all of shape (N,), overwriting ``sums``.

        See :meth:`rankless.world.exchange.Exchange.start`.
        """
        place, self.used = self.used, self.used + _lines(result.nbytes)
        return _SharedPending(self, place, sums, result)

    def begin_again(self) -> None:
        """Reuse the memory for the next step, once all exchanges of the current step have finished."""
        self.used = 0

    def view(self, area: int, place: int, like: Tensor) -> Tensor:
        """Return the vector at byte ``place`` of an area, with the length and type of ``like``."""
        start = area * self.length + place
        return torch.frombuffer(self.memory, dtype=like.dtype, count=like.numel(), offset=start)


class _SharedPending(Pending):
    """An exchange through shared memory, signaled by one byte.

    A rank starts the next step after all other ranks have signaled their totals, so they have read its sums.
    It writes a total after all other ranks have signaled their sums, so they have read the previous step's
    total.
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
        self.signals = torch.zeros(2, layout.size, dtype=torch.uint8)
        self.work = layout.transport.all_to_all(self.signals[0], self.signals[1], one_each, one_each)

    def combine(self) -> None:
        """Add up this rank's shard of all nodes in tree order, in shared memory."""
        self._wait()
        nodes, total = list(self._nodes()), self._totals()[self.mine]
        left_to_do = len(nodes) - 1

        def add(left: Tensor, right: Tensor) -> Tensor:
            nonlocal left_to_do
            left_to_do -= 1
            return add_in_place(left, right) if left_to_do else torch.add(left, right, out=total)

        Fold(self.layout.micro_batches, add, nodes)
        self.work = self.layout.transport.all_gather(self.signals[0], self.signals[1, :1])

    def finish(self) -> None:
        """Wait for the total and copy it to the result."""
        self._wait()
        self.result.copy_(self._totals())

    def _nodes(self) -> Iterator[tuple[Node, Tensor]]:
        """Yield this rank's shard of every node of all ranks, from left to right."""
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
    """Return shared memory for exchanging sums with the sizes of ``tensors``. All ranks must call this.

    Returns None if the ranks run on several machines, a tensor is not on the CPU, or a rank cannot access the
    memory. The system allocates pages when they are written, and frees them when the last rank exits.
    """
    tensors = list(tensors)
    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
    if not (tensors and on_cpu and layout.transport.on_one_machine):
        return None
    length = sum(_lines(tensor.nbytes) for tensor in tensors)
    size = length * (sum(len(nodes) for nodes in layout.nodes) + 1)
    file, token = -1, secrets.randbits(62)  # the others use rank 0's values
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
    """Create an anonymous file of ``size`` bytes and return its descriptor, or -1 if this fails."""
    try:
        file = os.memfd_create(_name(token))
    except OSError:
        return -1
    try:
        os.ftruncate(file, size)
    except OSError:  # the system may limit the size of files
        os.close(file)
        return -1
    return file


def _mapped(pid: int, file: int, token: int, size: int) -> mmap.mmap | None:
    """Map a file of another process into memory, or return None if this process cannot access it."""
    path = Path(f"/proc/{pid}/fd/{file}")
    try:
        if _name(token) not in str(path.readlink()):  # the ID belongs to another process here
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
