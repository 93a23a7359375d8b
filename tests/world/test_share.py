"""The fixed tree: whoever holds which leaves, the sum is the same expression."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.world.tree import Fold, Node, own_micro_batches, owned_nodes
from support.fixed_tree import tree

Expression = Any  # a leaf's number, or a pair of expressions


def pair(left: Expression, right: Expression) -> Expression:
    return (left, right)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, int]:
    leaves = draw(st.integers(1, 70))
    return leaves, draw(st.integers(1, leaves))


@st.composite
def splits(draw: st.DrawFn) -> tuple[int, list[range]]:
    """Leaves, and any cut of them into runs."""
    leaves = draw(st.integers(1, 70))
    cuts = sorted(draw(st.sets(st.integers(1, leaves - 1)))) if leaves > 1 else []
    ends = [0, *cuts, leaves]
    return leaves, [range(a, b) for a, b in itertools.pairwise(ends)]


def test_the_tree_of_the_tests_is_the_one_that_is_meant() -> None:
    assert tree(range(1), pair) == 0
    assert tree(range(3), pair) == ((0, 1), 2)
    assert tree(range(6), pair) == (((0, 1), (2, 3)), (4, 5))
    assert tree(range(7), pair) == (((0, 1), (2, 3)), ((4, 5), 6))


@given(worlds())
def test_ranks_share_all_micro_batches_evenly(world: tuple[int, int]) -> None:
    leaves, size = world
    shares = [own_micro_batches(leaves, rank, size) for rank in range(size)]
    assert [leaf for share in shares for leaf in share] == list(range(leaves))
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1 and min(lengths) >= 1
    assert lengths == sorted(lengths, reverse=True)


@given(splits())
def test_any_split_gives_the_sum_of_one_rank(split: tuple[int, list[range]]) -> None:
    leaves, runs = split
    whole: Fold[Expression] = Fold(leaves, pair)
    for run in runs:
        part: Fold[Expression] = Fold(leaves, pair)
        for leaf in run:
            part.push(Node(0, leaf), leaf)
        for node, value in part.stack:
            whole.push(node, value)
    ((node, value),) = whole.stack
    assert value == tree(range(leaves), pair)
    assert node.index == 0 and 1 << node.level >= leaves


@given(worlds())
def test_owned_nodes_are_what_the_ranks_hold(world: tuple[int, int]) -> None:
    leaves, size = world
    for rank in range(size):
        fold: Fold[list[int]] = Fold(leaves, lambda left, right: left + right)
        own = own_micro_batches(leaves, rank, size)
        for leaf in own:
            fold.push(Node(0, leaf), [leaf])
        assert [node for node, _ in fold.stack] == owned_nodes(leaves, rank, size)
        assert [leaf for _, held in fold.stack for leaf in held] == list(own)
        for (level, index), held in fold.stack:
            assert held == list(range(index << level, min((index + 1) << level, leaves)))


@given(st.integers(1, 70))
def test_few_partial_sums_are_kept(leaves: int) -> None:
    fold: Fold[None] = Fold(leaves, lambda left, right: None)
    for leaf in range(leaves):
        fold.push(Node(0, leaf), None)
        # one per bit of what has come in, and no more
        assert len(fold.stack) <= (leaves - 1).bit_length() + 1
    assert len(fold.stack) == 1


@given(worlds())
def test_a_share_is_few_nodes(world: tuple[int, int]) -> None:
    leaves, size = world
    most = 2 * (leaves - 1).bit_length() + 1
    assert all(1 <= len(owned_nodes(leaves, rank, size)) <= most for rank in range(size))


@pytest.mark.parametrize(
    ("leaves", "size"), [(8, 1), (8, 2), (8, 4), (8, 8), (16, 4), (24, 3), (6, 3), (7, 1)]
)
def test_equal_powers_of_two_are_one_node_each(leaves: int, size: int) -> None:
    assert [len(owned_nodes(leaves, rank, size)) for rank in range(size)] == [1] * size
