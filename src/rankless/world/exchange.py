"""Sums of the ranks' values along the fixed tree: the same bits whichever rank computed which leaf.

Every rank holds the sums of the largest whole nodes it owns. They are exchanged shard by shard (all-to-all),
each rank adds one shard of all of them in tree order, and the shards are gathered. Where the number of ranks
divides the micro-batches into equal powers of two, a rank holds exactly one node and sends what a ring
all-reduce would.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rankless.world.transport import PROCESS_GROUP, Transport, Work
from rankless.world.tree import Fold, Node, own_micro_batches, owned_nodes

# At most so much goes to one rank at a time over gloo. A rank says that it is ready to receive by way of the
# connection that it sends on, so behind a large message the other direction of the link would lie idle.
MESSAGE_BYTES = 2**20


def add_in_place(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left + right``, of one shape, in the memory of ``left``."""
    return left.add_(right)


class Exchange:
    """Adds the ranks' values along the tree, and knows which rank holds which nodes.

    Attributes:
        own: the micro-batches of this rank.
        nodes: per rank, the largest whole nodes over its micro-batches.
    """

    def __init__(
        self, micro_batches: int, rank: int, size: int, transport: Transport = PROCESS_GROUP
    ) -> None:
        self.micro_batches, self.rank, self.size = micro_batches, rank, size
        self.transport = transport
        self.own = own_micro_batches(micro_batches, rank, size)
        self.nodes = [owned_nodes(micro_batches, r, size) for r in range(size)]

    def start(self, sums: Sequence[Tensor], result: Tensor) -> Pending:
        """Begin to add ``sums`` to those of the other ranks.

        Every rank must start, combine and finish its exchanges in the same order.

        Args:
            sums: the flat sums of the nodes this rank owns, from left to right, each of shape (N,).
            result: where the total will be written, of shape (N,); may be the memory of one of ``sums``.
        """
        return Pending(self, sums, result)

    def parts(self, vector: Tensor) -> list[slice]:
        """The parts of a vector (N,) that are to be exchanged one by one: the same on every rank."""
        count = 1
        if self.size > 1 and self.transport.gathers_apart:
            shard = -(-len(vector) // self.size)
            count = max(1, -(-shard * vector.element_size() // MESSAGE_BYTES))
        length = -(-len(vector) // count)
        return [slice(start, start + length) for start in range(0, len(vector), length)]

    def fold(self, leaves: Iterable[Tensor]) -> list[Tensor]:
        """Add one flat vector per own micro-batch, (N,), up to the nodes that this rank owns, in place."""
        values = zip(self.own, leaves, strict=True)
        return [value for _, value in Fold(self.micro_batches, add_in_place, values).stack]

    def total(self, leaves: Iterable[Tensor]) -> Tensor:
        """The total over all ranks, (N,), of one flat vector per own micro-batch, (N,), added in place."""
        sums = self.fold(leaves)
        pending = self.start(sums, torch.empty_like(sums[0]))
        pending.combine()
        pending.finish()
        return pending.result

    def gather(self, value: int) -> list[int]:
        """Gather one number from every rank, on every rank, in rank order."""
        if self.size == 1:
            return [value]
        gathered = torch.empty(self.size, dtype=torch.long)
        with self.transport.waits.waiting():
            self.transport.all_gather(gathered, torch.tensor([value])).wait()
        return gathered.tolist()


class Pending:
    """An exchange under way: call :meth:`combine`, then :meth:`finish`, once each."""

    def __init__(self, layout: Exchange, sums: Sequence[Tensor], result: Tensor) -> None:
        self.layout, self.sums, self.result = layout, sums, result
        size, length = layout.size, result.numel()
        self.shard = -(-length // size)
        # The last ranks' shards are shorter, or empty, where the length does not divide.
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
        """Combine the others' parts unless some are still on their way; return whether it is done.

        Where gathering has no order of its own this waits, so that every rank keeps one order.
        """
        if self.work and self.layout.transport.gathers_apart and not self.work.is_completed():
            return False
        self.combine()
        return True

    def combine(self) -> None:
        """Add this rank's shard of all nodes in tree order and begin to gather the shards."""
        layout = self.layout
        if self.work is None:  # a world of one holds the root already
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
        self.sent = shard  # alive until the gathering is done

    def finish(self) -> None:
        """Wait until the total stands in the result."""
        if self.work is None:
            return
        self._wait()
        if self.gathered is not self.result:
            self.result.copy_(self.gathered[: self.result.numel()])
        del self.received, self.gathered, self.sent

    def _wait(self) -> None:
        """Wait for the others."""
        if self.work:
            with self.layout.transport.waits.waiting():
                self.work.wait()


def _by_destination(sums: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    """Return, flat, the parts of all nodes for rank 0, then those for rank 1, and so on."""
    if len(sums) == 1:
        return sums[0]
    pieces = [torch.split(vector, list(lengths)) for vector in sums]
    return torch.cat([piece[rank] for rank in range(len(lengths)) for piece in pieces])
