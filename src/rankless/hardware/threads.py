"""Number of CPU threads per operation, on which the order of additions depends in some operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_threads(count: int) -> None:
    """Set the number of threads for operations of the calling thread.

    Each thread has its own number. Its first query sets it to the last number that any thread set, so it is
    queried before it is set.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run enclosed operations of the calling thread with one thread, as in a loader process."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
