"""The number of CPU threads per operation; for some operations the order of additions depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_threads(count: int) -> None:
    """Let the operations of the calling thread compute with ``count`` threads.

    Each thread has its own number, and takes the last one that any thread set when it first asks for it.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, operations of the calling thread compute with one thread, as in a loader process."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
