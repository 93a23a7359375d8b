"""Keys: different uses of chance never share one, and the same use always does."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankless.randomness import generator, key, torch_seed

paths = st.lists(st.integers(-(2**70), 2**70) | st.text(max_size=6), max_size=4).map(tuple)


def exact(path: tuple[int | str, ...]) -> list[tuple[type, int | str]]:
    return [(type(element), element) for element in path]


@given(st.integers(0, 5), paths, st.integers(0, 5), paths)
def test_two_keys_are_equal_where_their_paths_are(seed, path, other_seed, other):
    same = seed == other_seed and exact(path) == exact(other)
    assert (key(seed, *path) == key(other_seed, *other)) == same
    assert 0 <= key(seed, *path) < 2**128


def test_paths_that_look_alike_have_other_keys() -> None:
    alike = [(1, 23), (12, 3), (123,), ("1", 23), (1, "23"), ("1", "23"), ("123",), ("i1:1", 23)]
    alike += [("", 1), (1, "")]
    keys = [key(0, *path) for path in alike]
    assert len(set(keys)) == len(alike)


def test_keys_never_change() -> None:
    """A run resumed with a later version must draw what it would have drawn: BLAKE2b, by the b2sum tool."""
    # printf 'i1:7s7:augmenti1:3i4:1290' | b2sum -l 128, read as a little-endian number
    assert key(7, "augment", 3, 1290).to_bytes(16, "little").hex() == "dc7dab2ee76cc7832ad1afc572b71b64"
    assert torch_seed(7, "augment", 3, 1290) == key(7, "augment", 3, 1290) % 2**63


@given(st.integers(0, 5), paths)
def test_a_generator_is_numpys_philox_with_the_key(seed: int, path: tuple[int | str, ...]) -> None:
    expected = np.random.Generator(np.random.Philox(key=key(seed, *path)))
    assert generator(seed, *path).integers(0, 2**64, 9, np.uint64).tolist() == (
        expected.integers(0, 2**64, 9, np.uint64).tolist()
    )


def test_generators_do_not_know_each_other() -> None:
    alone = generator(0, "x", 1).random(5)
    first, second = generator(0, "x", 1), generator(0, "x", 2)
    mixed = [(first.random(), second.random()) for _ in range(5)]
    assert [one for one, _ in mixed] == alone.tolist()
    draws = np.array([generator(0, "x", number).random() for number in range(2000)])
    assert abs(draws.mean() - 0.5) < 0.03 and abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 0.08


def test_torch_takes_the_seeds() -> None:
    seeds = [
        torch_seed(seed, "dropout", step, leaf) for seed, step, leaf in itertools.product(range(3), repeat=3)
    ]
    assert len(set(seeds)) == 27 and all(0 <= seed < 2**63 for seed in seeds)
    state = torch.get_rng_state()
    draws = set()
    for seed in seeds:
        torch.manual_seed(seed)
        draws.add(torch.rand(1).item())
    torch.set_rng_state(state)
    assert len(draws) == 27
