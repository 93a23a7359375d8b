"""Torchvision's random transforms as functions of a key.

They draw from torch's global generator, so each runs on a seed of its own and the generator's state is put
back: switching one part off leaves the others as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rankless.randomness import torch_seed

Key = tuple[int, str, int, int]
"""(seed, "augment", epoch, index): what one variation is a function of."""


@contextmanager
def drawing(key: Key, part: str) -> Iterator[None]:
    """Inside, torch's CPU generator draws what ``key`` and ``part`` say; outside nothing is noticed."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would seed the GPUs as well.
        torch.default_generator.manual_seed(torch_seed(*key, part))
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, one thread, as in a loader process: some operations may add in an order that depends on it."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
