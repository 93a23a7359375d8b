"""The assignment of micro-batches to ranks, and the fixed tree along which their values are added.

The leaves are the micro-batches 0 to M - 1 of a step. A node ``(level, index)`` covers the existing leaves
from ``index * 2**level`` up to, but not including, ``(index + 1) * 2**level``. Its value is the sum of its
left and right child, or the left child's value if there is no right child.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


def own_micro_batches(micro_batches: int, rank: int, size: int) -> range:
    """Return the contiguous range of micro-batches of ``rank``. For example, 3 ranks get 3, 3 and 2 of 8."""
    each, more = divmod(micro_batches, size)
    start = rank * each + min(rank, more)
    return range(start, start + each + (rank < more))


class Node(NamedTuple):
    """A position in the fixed reduction tree."""

    level: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed


class Fold(Generic[Value]):
    """An incremental sum along the reduction tree, from left to right, with as few partial sums as possible.

    Args:
        leaves: number of leaves of the tree, M.
        add: a function of the left and the right value that returns their sum and may overwrite either.
        values: initial values of nodes or leaves, from left to right.

    Attributes:
        stack: the nodes with their partial sums, from left to right. There are at most log2 M + 1 if the
            first leaf's index is a multiple of the number of leaves.
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
        """Add the value of the node that follows the last added node."""
        while True:
            level, index = node
            if index % 2 and self.stack and self.stack[-1][0] == Node(level, index - 1):
                value = self.add(self.stack.pop()[1], value)
            elif index % 2 or level == self.top or (index + 1) << level < self.leaves:
                break  # the sibling is missing or this is the root
            node = Node(level + 1, index // 2)
        self.stack.append((node, value))


def owned_nodes(micro_batches: int, rank: int, size: int) -> list[Node]:
    """Return the largest nodes that cover only micro-batches of ``rank``, from left to right."""
    own = own_micro_batches(micro_batches, rank, size)
    fold: Fold[None] = Fold(micro_batches, lambda left, right: None, ((leaf, None) for leaf in own))
    return [node for node, _ in fold.stack]


def most_sums(micro_batches: int, rank: int, size: int) -> int:
    """Return how many vectors a rank has at most while it adds its micro-batches, including the next one."""
    fold: Fold[None] = Fold(micro_batches, lambda left, right: None)
    most = 0
    for leaf in own_micro_batches(micro_batches, rank, size):
        most = max(most, len(fold.stack) + 1)
        fold.push(Node(0, leaf), None)
    return most
