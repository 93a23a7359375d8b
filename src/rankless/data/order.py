"""Choose the images of each micro-batch as a function of the seed and the position.

A keyed permutation of 0..n-1 shuffles the images of each epoch. Any position of any epoch can be computed in
constant time and memory, without a shuffled list or a sampler state. The epochs form one endless stream,
which is cut into global batches of equal size. No image is dropped, and every epoch contains every image
exactly once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankless.randomness import key
from rankless.recipe.schema import Batch

_ROUNDS, _ROUNDS_OF_FEW, _FEW = 8, 16, 1024  # small n need more rounds: 8 rounds are visibly uneven for n = 5


class Line(NamedTuple):
    """One line of a schedule: the images of one micro-batch."""

    step: int  # training step, from 0; always 0 in evaluations
    images: Sequence[tuple[int, int]]  # (epoch, index) of each image


def permute(n: int, key: int, positions: NDArray[np.integer] | int) -> NDArray[np.int64]:
    """Apply a keyed permutation of 0..n-1 to ``positions``, an array of any shape, and return int64 values.

    The permutation is a Feistel network over Z_a × Z_b with a·b ≥ n (Black and Rogaway, "Ciphers with
    Arbitrary Finite Domains", 2002). Each round adds a keyed hash of one half to the other half. Results ≥ n
    are permuted again (cycle walking), which is rare because a·b is close to n.

    Args:
        n: number of images, 1 to 2**62, so that sums fit in 64 bits.
        key: key of the permutation, 0 to 2**128 - 1.
        positions: values in 0..n-1.
    """
    asked = np.asarray(positions)
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
    """Return the (epoch, index) of the image at each position, (P,), of the endless training stream.

    Position p belongs to epoch ``p // n``, where n is the number of images.
    """
    epochs = positions // n
    indices = np.empty(positions.shape, np.int64)
    for epoch in np.unique(epochs).tolist():
        here = epochs == epoch
        indices[here] = permute(n, key(seed, "order", epoch), positions[here] % n)
    pairs: list[tuple[int, int]] = np.stack((epochs, indices), 1).tolist()
    return [(epoch, index) for epoch, index in pairs]


def micro_batch(n: int, seed: int, step: int, micro_batch: int, batch: Batch) -> list[tuple[int, int]]:
    """Return the (epoch, index) of each image of a micro-batch. The result does not depend on the rank."""
    first = step * batch.images + micro_batch * batch.micro
    return stream(n, seed, np.arange(first, first + batch.micro))


def _halves(n: int) -> tuple[int, int]:
    """Return moduli a ≈ b whose product is at least n and close to n.

    a is even. If both were odd, every round, and therefore the result, would be an even permutation.
    """
    root = int(np.sqrt(float(n)))
    a = max(2, root + root % 2)
    return a, -(-n // a)


def _encrypt(x: NDArray[np.uint64], a: int, b: int, round_keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the Feistel network, a permutation of 0..a*b-1, once."""
    size_a, size_b = np.uint64(a), np.uint64(b)
    left, right = x % size_a, x // size_a
    for number, round_key in enumerate(round_keys):
        if number % 2:
            right = (right + _mix(left ^ round_key) % size_b) % size_b
        else:
            left = (left + _mix(right ^ round_key) % size_a) % size_a
    return right * size_a + left


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of ``x`` with the finalizer of splitmix64 (Steele, Lea and Flood, 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
