"""The only source of random numbers.

Each random number comes from a generator whose key describes its purpose (the seed, the epoch, the image, the
step, the micro-batch). The key does not depend on the process or on earlier random numbers, so generators
have no state to save, and no number depends on a rank or a loader process.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

GENERATORS = threading.RLock()
"""Hold this lock while seeding and using the process's generators, because other threads may be ranks."""


def key(seed: int, *path: int | str) -> int:
    """Return the 128-bit key of the random numbers for one purpose, an integer in [0, 2**128).

    It is the BLAKE2b hash of the type, length and text of each element, so that different paths have
    different encodings.

    Args:
        seed: the recipe's seed.
        path: the purpose, from general to specific: ``key(7, "augment", 3, 1290)``.
    """
    encoded = b"".join(
        b"%s%d:%s" % (b"i" if isinstance(element, int) else b"s", len(text), text)
        for element in (seed, *path)
        for text in (str(element).encode(errors="surrogateescape"),)
    )
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=16).digest(), "little")


class _Key(ISeedSequence):
    """A seed that sets Philox's key. With the parameter ``key``, NumPy would also read system entropy."""

    def __init__(self, number: int) -> None:
        self.words = np.array((number & (2**64 - 1), number >> 64), np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[np.uint64]:
        """Return the key, which Philox requests as two words of 64 bits."""
        return self.words


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """Return a counter-based NumPy generator (Philox) for one purpose; see :func:`key`."""
    # NumPy's annotations leave out ISeedSequence.
    return np.random.Generator(np.random.Philox(_Key(key(seed, *path))))  # type: ignore[arg-type]


def torch_seed(seed: int, *path: int | str) -> int:
    """Return a seed for ``torch.manual_seed``: the low 63 bits of :func:`key`."""
    return key(seed, *path) & (2**63 - 1)


def words(number: int) -> list[int]:
    """Return a 128-bit number as four words, a seed for NumPy's legacy generators."""
    return [number >> 32 * word & 0xFFFFFFFF for word in range(4)]


def seed_generators(seed: int, *path: int | str) -> None:
    """Seed the process's generators of Python, NumPy and torch (on the CPU) for one purpose; see :func:`key`.

    This takes 0.02 ms. ``torch.manual_seed`` alone takes 0.25 ms, because it looks for all types of devices.
    """
    import torch  # not at the top, because commands that do not compute import this module

    # With the same seed, Python and NumPy would generate the same numbers (both use MT19937).
    random.seed(key(seed, *path, "python"))
    np.random.seed(words(key(seed, *path, "numpy")))  # noqa: NPY002 - the legacy one
    torch.default_generator.manual_seed(torch_seed(seed, *path))


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the states of the generators of :func:`seed_generators` at the end of this block."""
    import torch

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


def drawn_from() -> tuple[bytes, bytes]:
    """Return a description of the states of Python's and NumPy's generators, to see if they were used."""
    with GENERATORS:
        state: Any = np.random.get_state()  # noqa: NPY002
        return repr(random.getstate()).encode(), state[1].tobytes() + repr(state[2:]).encode()
