"""The keyed order: a bijection, without visible structure, addressable anywhere."""

import itertools
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankless.data.order import micro_batch, permute, stream
from rankless.recipe.schema import Batch

KEYS = st.integers(0, 2**128 - 1)


@given(n=st.integers(1, 3000), key=KEYS)
def test_every_number_comes_once(n: int, key: int) -> None:
    assert sorted(permute(n, key, np.arange(n)).tolist()) == list(range(n))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 16, 25, 97, 1021, 1024, 4096, 4097, 65537])
def test_every_number_comes_once_at_awkward_sizes(n: int) -> None:
    assert np.array_equal(np.sort(permute(n, 5, np.arange(n))), np.arange(n))


@given(n=st.integers(1, 2**62), key=KEYS, data=st.data())
def test_a_position_is_answered_alone_as_among_others(n: int, key: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8, unique=True))
    together = permute(n, key, np.array(positions))
    assert ((together >= 0) & (together < n)).all()
    assert len(set(together.tolist())) == len(positions)
    assert [int(permute(n, key, position)) for position in positions] == together.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 5])
def test_all_orders_of_a_few_are_equally_likely(n: int) -> None:
    draws = 2400 if n == 5 else 800
    orders = list(itertools.permutations(range(n)))
    seen = Counter(tuple(permute(n, key * 7919, np.arange(n)).tolist()) for key in range(draws))
    expected = draws / len(orders)
    chi_square = sum((seen[order] - expected) ** 2 / expected for order in orders)
    freedom = len(orders) - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)  # mean and deviation of chi-square


@pytest.mark.slow
@pytest.mark.parametrize("n", [10, 1000, 1024])
def test_where_two_neighbors_go_is_uniform_and_independent(n: int) -> None:
    cells = 10
    counts = np.zeros((cells, cells))
    for key in range(1200):
        go = permute(n, key, np.array([n // 3, n // 3 + 1])) * cells // n
        counts[go[0], go[1]] += 1
    sizes = np.bincount(np.arange(n) * cells // n)
    ways = np.outer(sizes, sizes) - np.diag(sizes)  # of two different results to fall into two cells
    counts, expected = counts[ways > 0], (counts.sum() * ways / ways.sum())[ways > 0]
    freedom = len(expected) - 1
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("n", [1009, 4096, 100_000])
def test_no_serial_correlation(n: int) -> None:
    order = permute(n, 3, np.arange(n)).astype(np.float64)
    for lag in (1, 2, 3, 16, 64, round(np.sqrt(n))):
        correlation = np.corrcoef(order[:-lag], order[lag:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(n - lag)
    assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 5 / np.sqrt(n)


def test_another_key_is_another_order() -> None:
    a, b = permute(1000, 1, np.arange(1000)), permute(1000, 2, np.arange(1000))
    assert (a == b).sum() < 10  # one is expected by chance
    assert (permute(1000, 1 << 64, np.arange(1000)) == a).sum() < 10


def test_a_billion_images_are_quick() -> None:
    n = 10**9
    start, seconds = n - 64, []
    for _ in range(20):
        before = time.perf_counter()
        got = permute(n, 11, np.arange(start, n))
        seconds.append(time.perf_counter() - before)
    assert got.min() >= 0 and got.max() < n and len(set(got.tolist())) == 64
    assert min(seconds) < 1e-3


@pytest.mark.slow
@settings(max_examples=30)
@given(n=st.integers(1, 50), images=st.integers(1, 60), micro=st.integers(1, 8), seed=st.integers(0, 9))
def test_steps_cut_epochs_without_remainder(n: int, images: int, micro: int, seed: int) -> None:
    batch = Batch(images=images * micro, micro=micro)
    steps = -(-3 * n // batch.images)
    run = [
        place
        for step in range(steps)
        for number in range(batch.micro_batches)
        for place in micro_batch(n, seed, step, number, batch)
    ]
    assert len(run) == steps * batch.images
    for epoch in range(3):
        assert sorted(index for e, index in run if e == epoch) == list(range(n))
    assert [epoch for epoch, _ in run] == sorted(epoch for epoch, _ in run)


def test_epochs_differ_and_a_stream_can_begin_anywhere() -> None:
    whole = stream(100, 4, np.arange(300))
    assert stream(100, 4, np.arange(150, 250)) == whole[150:250]
    assert [i for _, i in whole[:100]] != [i for _, i in whole[100:200]]
    assert whole != stream(100, 5, np.arange(300))
    assert all(isinstance(value, int) for pair in whole for value in pair)
