"""The one source of randomness.

Everything random is drawn from a generator keyed by *what it is for* (the seed, the epoch, the image,
the step, the micro-batch), never by who draws it or what was drawn before. So no generator has a state
to save, and no number depends on a rank or on a loader worker.
"""

from __future__ import annotations

import hashlib
import threading

import numpy as np

GENERATORS = threading.RLock()
"""Held by a thread that seeds the process's generators and draws from them: other threads may be ranks."""


def key(seed: int, *path: int | str) -> int:
    """A 128-bit key for one use of randomness.

    Args:
        seed: the recipe's seed.
        path: what the numbers are for, from the general to the particular: ``key(7, "augment", 3, 1290)``.

    Returns:
        An integer in [0, 2**128): BLAKE2b over the type, length and text of every element, so that no two
        different paths share an encoding.
    """
    encoded = b"".join(
        b"%s%d:%s" % (b"i" if isinstance(element, int) else b"s", len(text), text)
        for element in (seed, *path)
        for text in (str(element).encode(errors="surrogateescape"),)
    )
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=16).digest(), "little")


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """A NumPy generator (Philox, counter-based) for one use of randomness; see :func:`key`."""
    return np.random.Generator(np.random.Philox(key=key(seed, *path)))


def torch_seed(seed: int, *path: int | str) -> int:
    """A seed for ``torch.manual_seed``: the low 63 bits of :func:`key`."""
    return key(seed, *path) & (2**63 - 1)
