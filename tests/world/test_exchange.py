"""Real ranks add along the tree: the bits of one process that adds all leaves by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rankless.world.exchange import Exchange
from rankless.world.process_group import World
from rankless.world.tree import own_micro_batches
from support.fixed_tree import tree

LENGTHS = (1, 2, 3, 7, 64, 1001)
LEAVES = (4, 6, 7, 8, 13)


def leaf_vector(leaf: int, length: int) -> NDArray[np.float32]:
    """Numbers of very different sizes, so that another order of adding shows."""
    rng = np.random.default_rng([leaf, length])
    return (rng.normal(size=length) * 10.0 ** rng.uniform(-4, 4, length)).astype(np.float32)


def reference(leaves: int, length: int) -> bytes:
    total: NDArray[np.float32] = tree([leaf_vector(leaf, length) for leaf in range(leaves)], np.add)
    return total.tobytes()


def own_leaves(world: World, leaves: int, length: int) -> list[torch.Tensor]:
    own = own_micro_batches(leaves, world.rank, world.size)
    return [torch.from_numpy(leaf_vector(leaf, length)) for leaf in own]


def totals(world: World) -> dict[tuple[int, int], bytes]:
    return {
        (leaves, length): Exchange(leaves, world.rank, world.size, world.transport)
        .total(own_leaves(world, leaves, length))
        .numpy()
        .tobytes()
        for leaves in LEAVES
        for length in LENGTHS
    }


def several_under_way(world: World) -> tuple[list[bytes], bool]:
    """Three exchanges begun before the first is finished, the results in the memory of what was held."""
    layout = Exchange(8, world.rank, world.size, world.transport)
    pending, results = [], []
    for length in LENGTHS[2:5]:
        sums = layout.fold(own_leaves(world, 8, length))
        pending.append(layout.start(sums, sums[-1]))
        results.append(sums[-1])
    for exchange in pending:
        exchange.combine()
    for exchange in pending:
        exchange.finish()
    found = [result.numpy().tobytes() for result in results]
    return found, all(exchange.result is result for exchange, result in zip(pending, results, strict=True))


@pytest.mark.processes
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_totals_are_those_of_one_process(ranks: Any, size: int) -> None:
    answers = ranks(size, totals)
    for (leaves, length), found in answers[0].items():
        assert found == reference(leaves, length), (leaves, length)
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3])
def test_several_exchanges_may_be_under_way(ranks: Any, size: int) -> None:
    expected = [reference(8, length) for length in LENGTHS[2:5]]
    for found, in_place in ranks(size, several_under_way):
        assert in_place
        assert found == expected


def test_the_order_of_adding_shows_in_these_numbers() -> None:
    """Else the tests above could not fail."""
    in_turn = leaf_vector(0, 64)
    for leaf in range(1, 8):
        in_turn = in_turn + leaf_vector(leaf, 64)
    assert in_turn.tobytes() != reference(8, 64)
