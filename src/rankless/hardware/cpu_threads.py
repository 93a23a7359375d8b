"""Set the number of CPU threads, which affects the order of additions in some operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_threads(count: int) -> None:
    """Set the number of threads that the operations of the calling thread use.

    PyTorch keeps one number per thread. A thread's first query replaces its number with the one that was last
    set by any thread, so this function queries the number before setting it.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the calling thread's operations within the block on one thread, as in a loader process."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
