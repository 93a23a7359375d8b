"""Adding what the ranks hold along the fixed tree: the same bits whoever computed which leaf.

Every rank holds the sums of the largest whole nodes it owns. They are exchanged shard by shard (all-to-all),
each rank adds one shard of all of them in tree order, and the shards are gathered. Where the number of ranks
divides the micro-batches into equal powers of two, a rank holds exactly one node and sends what a ring
all-reduce would.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from rankless.world.compat import all_gather_single
from rankless.world.tree import Fold, Node, owned_nodes


def add_in_place(left: Tensor, right: Tensor) -> Tensor:
    """``left + right`` in the memory of ``left``."""
    return left.add_(right)


class Exchange:
    """The plan of all exchanges of a run: which rank holds which nodes.

    Args:
        micro_batches: leaves of the tree.
        rank, size: this rank's number and how many there are.
    """

    def __init__(self, micro_batches: int, rank: int, size: int) -> None:
        self.micro_batches, self.rank, self.size = micro_batches, rank, size
        self.nodes = [owned_nodes(micro_batches, r, size) for r in range(size)]

    def start(self, sums: Sequence[Tensor], result: Tensor) -> Pending:
        """Begin to add ``sums`` to what the other ranks hold.

        Every rank must start, combine and finish its exchanges in the same order.

        Args:
            sums: the flat sums of the nodes this rank owns, from left to right, all of one length.
            result: flat, where the total will stand; may be the memory of one of ``sums``.
        """
        return Pending(self, sums, result)

    def total(self, sums: Sequence[Tensor]) -> Tensor:
        """The total over all ranks of one flat vector per own node, at once."""
        result = torch.empty_like(sums[0])
        pending = self.start(sums, result)
        pending.combine()
        pending.finish()
        return result

    def gather(self, value: int) -> list[int]:
        """One number of every rank, on every rank, in the order of the ranks."""
        if self.size == 1:
            return [value]
        gathered = torch.empty(self.size, dtype=torch.long)
        all_gather_single(gathered, torch.tensor([value]))
        return gathered.tolist()


class Pending:
    """One exchange under way; :meth:`combine`, then :meth:`finish`."""

    def __init__(self, plan: Exchange, sums: Sequence[Tensor], result: Tensor) -> None:
        self.plan, self.sums, self.result = plan, sums, result
        size, length = plan.size, result.numel()
        self.shard = -(-length // size)
        # The last ranks' shards are shorter, or empty, where the length does not divide.
        lengths = [min(self.shard, max(length - rank * self.shard, 0)) for rank in range(size)]
        self.own = lengths[plan.rank]
        self.work: dist.Work | None = None
        if size == 1:
            return
        held = [len(nodes) for nodes in plan.nodes]
        self.received = result.new_empty(sum(held) * self.own)
        self.work = dist.all_to_all_single(
            self.received,
            _by_destination(sums, lengths),
            output_split_sizes=[count * self.own for count in held],
            input_split_sizes=[held[plan.rank] * n for n in lengths],
            async_op=True,
        )

    def combine(self) -> None:
        """Add this rank's shard of all nodes in tree order and begin to gather the shards."""
        plan = self.plan
        if self.work is None:  # a world of one holds the root already
            if self.result is not self.sums[0]:
                self.result.copy_(self.sums[0])
            return
        self.work.wait()
        fold: Fold[Tensor] = Fold(plan.micro_batches, add_in_place)
        nodes: list[Node] = [node for owned in plan.nodes for node in owned]
        for node, value in zip(nodes, self.received.view(len(nodes), self.own), strict=True):
            fold.push(node, value)
        ((_, total),) = fold.stack
        shard = (
            total if self.own == self.shard else torch.cat([total, total.new_zeros(self.shard - self.own)])
        )
        even = self.shard * plan.size == self.result.numel()
        self.gathered = self.result if even else self.result.new_empty(self.shard * plan.size)
        self.work = all_gather_single(self.gathered, shard, async_op=True)
        self.kept = shard  # alive until the gathering is done

    def finish(self) -> None:
        """Wait until the total stands in the result."""
        if self.work is None:
            return
        self.work.wait()
        if self.gathered is not self.result:
            self.result.copy_(self.gathered[: self.result.numel()])
        del self.received, self.gathered, self.kept


def _by_destination(sums: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    """What goes to rank 0 from every node, then what goes to rank 1, …: flat."""
    if len(sums) == 1:
        return sums[0]
    pieces = [torch.split(vector, list(lengths)) for vector in sums]
    return torch.cat([piece[rank] for rank in range(len(lengths)) for piece in pieces])
