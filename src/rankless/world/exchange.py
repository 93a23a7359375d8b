"""Sum the ranks' values along a fixed binary tree, with the same bits for any number of ranks.

Every rank computes the sums of the largest tree nodes that cover only its own micro-batches. An all-to-all
distributes shards of these sums, each rank adds up one shard in tree order, and an all-gather collects the
totals. If all ranks have the same number of micro-batches and it is a power of two, a rank has one node and
sends as many bytes as in a ring all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rankless.world.transport import PROCESS_GROUP, Transport, Work
from rankless.world.tree import Fold, Node, own_micro_batches, owned_nodes

# Largest message to one rank over gloo. A rank signals that it is ready to receive over the connection on
# which it sends data, so a large message would delay the signal and leave the link's other direction idle.
MESSAGE_BYTES = 2**20


def add_in_place(left: Tensor, right: Tensor) -> Tensor:
    """Add ``right`` to ``left`` in place, and return ``left``."""
    return left.add_(right)


class Exchange:
    """Sums the ranks' values in the order of the fixed tree, with nodes distributed over the ranks.

    ``own`` contains this rank's micro-batches, and ``nodes`` contains, for each rank, the largest tree nodes
    that cover only its own micro-batches.
    """

    def __init__(
        self, micro_batches: int, rank: int, size: int, transport: Transport = PROCESS_GROUP
    ) -> None:
        self.micro_batches, self.rank, self.size = micro_batches, rank, size
        self.transport = transport
        self.own = own_micro_batches(micro_batches, rank, size)
        self.nodes = [owned_nodes(micro_batches, r, size) for r in range(size)]

    def start(self, sums: Sequence[Tensor], result: Tensor) -> Pending:
        """Start adding this rank's ``sums`` to the sums of the other ranks.

        Every rank must start, combine and finish its exchanges in the same order. ``sums`` are the vectors
        (N,) of this rank's nodes from left to right. ``result`` (N,) receives the total, and may be one of
        ``sums``.
        """
        return Pending(self, sums, result)

    def parts(self, vector: Tensor) -> list[slice]:
        """Return slices that split a vector (N,) for separate exchanges, the same on every rank."""
        count = 1
        if self.size > 1 and self.transport.gathers_apart:
            shard = -(-len(vector) // self.size)
            count = max(1, -(-shard * vector.element_size() // MESSAGE_BYTES))
        length = -(-len(vector) // count)
        return [slice(start, start + length) for start in range(0, len(vector), length)]

    def fold(self, leaves: Iterable[Tensor]) -> list[Tensor]:
        """Add up the vectors (N,) of this rank's micro-batches in place, and return the sums of its nodes."""
        values = zip(self.own, leaves, strict=True)
        return [value for _, value in Fold(self.micro_batches, add_in_place, values).stack]

    def total(self, leaves: Iterable[Tensor]) -> Tensor:
        """Add up the vectors (N,) of all ranks' micro-batches in place, and return the total (N,)."""
        sums = self.fold(leaves)
        pending = self.start(sums, torch.empty_like(sums[0]))
        pending.combine()
        pending.finish()
        return pending.result

    def gather(self, value: int) -> list[int]:
        """Return every rank's ``value`` in rank order."""
        if self.size == 1:
            return [value]
        gathered = torch.empty(self.size, dtype=torch.long)
        with self.transport.waits.waiting():
            self.transport.all_gather(gathered, torch.tensor([value])).wait()
        return gathered.tolist()


class Pending:
    """A started exchange. Call :meth:`combine` and then :meth:`finish`, once each."""

    def __init__(self, layout: Exchange, sums: Sequence[Tensor], result: Tensor) -> None:
        self.layout, self.sums, self.result = layout, sums, result
        size, length = layout.size, result.numel()
        self.shard = -(-length // size)
        # If the length is not divisible, the last ranks' shards are shorter or empty.
        lengths = [min(self.shard, max(length - rank * self.shard, 0)) for rank in range(size)]
        self.own = lengths[layout.rank]
        self.work: Work | None = None
        if size == 1:
            return
        counts = [len(nodes) for nodes in layout.nodes]
        self.received = result.new_empty(sum(counts) * self.own)
        self.work = layout.transport.all_to_all(
            self.received,
            _by_destination(sums, lengths),
            to_receive=[count * self.own for count in counts],
            to_send=[counts[layout.rank] * n for n in lengths],
        )

    def combine_if_there(self) -> bool:
        """Combine the parts of the other ranks if they have arrived, and return whether they were combined.

        If the transport requires the same order of operations on all ranks, wait for the parts.
        """
        if self.work and self.layout.transport.gathers_apart and not self.work.is_completed():
            return False
        self.combine()
        return True

    def combine(self) -> None:
        """Add up this rank's shard of all nodes in tree order and start gathering the shards."""
        layout = self.layout
        if self.work is None:  # a single rank holds the root
            if self.result is not self.sums[0]:
                self.result.copy_(self.sums[0])
            return
        self._wait()
        nodes: list[Node] = [node for owned in layout.nodes for node in owned]
        values = zip(nodes, self.received.view(len(nodes), self.own), strict=True)
        ((_, total),) = Fold(layout.micro_batches, add_in_place, values).stack
        shard = (
            total if self.own == self.shard else torch.cat([total, total.new_zeros(self.shard - self.own)])
        )
        even = self.shard * layout.size == self.result.numel()
        self.gathered = self.result if even else self.result.new_empty(self.shard * layout.size)
        self.work = layout.transport.all_gather(self.gathered, shard)
        self.sent = shard  # must be kept alive until the gather is complete

    def finish(self) -> None:
        """Wait for the total and write it to the result."""
        if self.work is None:
            return
        self._wait()
        if self.gathered is not self.result:
            self.result.copy_(self.gathered[: self.result.numel()])
        del self.received, self.gathered, self.sent

    def _wait(self) -> None:
        if self.work:
            with self.layout.transport.waits.waiting():
                self.work.wait()


def _by_destination(sums: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    """Return a flat vector with the parts of all nodes for rank 0, then those for rank 1, and so on."""
    if len(sums) == 1:
        return sums[0]
    pieces = [torch.split(vector, list(lengths)) for vector in sums]
    return torch.cat([piece[rank] for rank in range(len(lengths)) for piece in pieces])
