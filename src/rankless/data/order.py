"""The images of each micro-batch: a function of the seed and the position alone.

The images of one epoch are shuffled by a keyed bijection on 0..n-1, so any position of any epoch is
answered in constant time and memory: no shuffled list, no sampler state, nothing to save for a resume.
Epochs follow one another in one endless stream, which steps cut into global batches: no batch is ragged,
nothing is dropped, and every epoch holds every image exactly once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankless.randomness import key
from rankless.recipe.schema import Batch

_ROUNDS, _ROUNDS_OF_FEW, _FEW = 8, 16, 1024  # few positions mix slowly: with 8 rounds, 5 are visibly uneven
_LARGEST = 2**62  # the sums below must stay inside 64 bits


class Line(NamedTuple):
    """One line of a schedule: the composition of one micro-batch.

    Attributes:
        step: the step it belongs to, from 0; 0 in an evaluation.
        images: the (epoch, index) of each image.
    """

    step: int
    images: Sequence[tuple[int, int]]


def permute(n: int, key: int, positions: NDArray[np.integer] | int) -> NDArray[np.int64]:
    """Return where a keyed permutation of 0..n-1 sends ``positions``.

    A Feistel network over Z_a × Z_b with a·b ≥ n (Black and Rogaway, "Ciphers with Arbitrary Finite
    Domains", 2002): each round adds a keyed hash of one half to the other half. Results that are not below
    n are sent through again until they are (cycle walking); a·b is barely larger than n, so that is rare.

    Args:
        n: how many images, 1 to 2**62.
        key: 0 to 2**128 - 1; another key is another permutation.
        positions: of any shape, each in 0..n-1.

    Returns:
        int64 of the shape of ``positions``, each in 0..n-1; different positions give different results.
    """
    asked = np.asarray(positions)
    if not 1 <= n <= _LARGEST:
        raise ValueError(f"permute: n is {n}; expected 1 to 2**62")
    if asked.size and (asked.min() < 0 or asked.max() >= n):
        raise ValueError(f"permute: positions from {asked.min()} to {asked.max()}; expected 0 to {n - 1}")
    rounds = _ROUNDS_OF_FEW if n < _FEW else _ROUNDS
    round_keys = np.frombuffer(hashlib.shake_128(key.to_bytes(16, "little")).digest(8 * rounds), "<u8")
    left, right = _halves(n)
    state = _encrypt(asked.astype(np.uint64).ravel(), left, right, round_keys)
    outside = np.flatnonzero(state >= n)
    while outside.size:
        state[outside] = _encrypt(state[outside], left, right, round_keys)
        outside = outside[state[outside] >= n]
    return state.astype(np.int64).reshape(asked.shape)


def stream(n: int, seed: int, positions: NDArray[np.integer]) -> list[tuple[int, int]]:
    """Return the images at ``positions`` of the endless training stream.

    Args:
        n: how many images the data has.
        seed: the recipe's.
        positions: 0 is the first image of the run; (P,).

    Returns:
        P pairs (epoch, index of the image); position p belongs to epoch ``p // n``.
    """
    epochs = positions // n
    indices = np.empty(positions.shape, np.int64)
    for epoch in np.unique(epochs).tolist():
        here = epochs == epoch
        indices[here] = permute(n, key(seed, "order", epoch), positions[here] % n)
    pairs: list[tuple[int, int]] = np.stack((epochs, indices), 1).tolist()
    return [(epoch, index) for epoch, index in pairs]


def micro_batch(n: int, seed: int, step: int, micro_batch: int, batch: Batch) -> list[tuple[int, int]]:
    """Return the images of one micro-batch of one step, as (epoch, index), whoever computes it."""
    first = step * batch.images + micro_batch * batch.micro
    return stream(n, seed, np.arange(first, first + batch.micro))


def _halves(n: int) -> tuple[int, int]:
    """The moduli a, b with a·b ≥ n, close to n and to each other.

    a is even: a round adds a cycle of length a, and with both lengths odd no permutation of odd sign could
    ever come out.
    """
    root = int(np.sqrt(float(n)))
    a = max(2, root + root % 2)
    return a, -(-n // a)


def _encrypt(x: NDArray[np.uint64], a: int, b: int, round_keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the network once: a bijection on 0..a*b-1."""
    size_a, size_b = np.uint64(a), np.uint64(b)
    left, right = x % size_a, x // size_a
    for number, round_key in enumerate(round_keys):
        if number % 2:
            right = (right + _mix(left ^ round_key) % size_b) % size_b
        else:
            left = (left + _mix(right ^ round_key) % size_a) % size_a
    return right * size_a + left


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finalizer (Steele, Lea and Flood, 2014): every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
