"""The assignment of micro-batches to ranks, and the fixed tree along which their sums are added.

Leaves are the micro-batches 0..M-1 of a step. A node ``(level, index)`` stands for the leaves
``index * 2**level`` up to ``(index + 1) * 2**level``, of which those from M on do not exist. Its value is the
value of its left child plus the value of its right child, or the left one alone where the right is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


def own_micro_batches(micro_batches: int, rank: int, size: int) -> range:
    """The contiguous run of micro-batches that ``rank`` computes; 8 on 3 ranks are 3 + 3 + 2."""
    each, more = divmod(micro_batches, size)
    start = rank * each + min(rank, more)
    return range(start, start + each + (rank < more))


class Node(NamedTuple):
    """A position in the tree."""

    level: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a node


class Fold(Generic[Value]):
    """Adds values along the tree as they come in, from left to right, keeping as few partial sums as can be.

    Args:
        leaves: how many leaves the tree has, M.
        add: ``add(left, right)`` gives their sum and may reuse the memory of either.
        values: added at once, those of nodes or of leaves (micro-batches), from left to right.

    Attributes:
        stack: the whole nodes that could not be added further yet, from left to right: at most
            log2 M + 1 of them while a run of leaves that begins at a multiple of its length comes in.
    """

    def __init__(
        self,
        leaves: int,
        add: Callable[[Value, Value], Value],
        values: Iterable[tuple[Node | int, Value]] = (),
    ) -> None:
        self.leaves = leaves
        self.add = add
        self.top = max(leaves - 1, 0).bit_length()
        self.stack: list[tuple[Node, Value]] = []
        for position, value in values:
            self.push(Node(0, position) if isinstance(position, int) else position, value)

    def push(self, node: Node, value: Value) -> None:
        """Take the value of the node that begins where the last one ended."""
        while True:
            level, index = node
            if index % 2 and self.stack and self.stack[-1][0] == Node(level, index - 1):
                value = self.add(self.stack.pop()[1], value)
            elif index % 2 or level == self.top or (index + 1) << level < self.leaves:
                break  # its sibling is still to come, is another rank's, or this is the root
            node = Node(level + 1, index // 2)
        self.stack.append((node, value))


def owned_nodes(micro_batches: int, rank: int, size: int) -> list[Node]:
    """The largest whole nodes over the micro-batches of ``rank``, from left to right."""
    own = own_micro_batches(micro_batches, rank, size)
    fold: Fold[None] = Fold(micro_batches, lambda left, right: None, ((leaf, None) for leaf in own))
    return [node for node, _ in fold.stack]
