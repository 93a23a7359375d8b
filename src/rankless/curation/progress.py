"""Process many images in threads, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rankless.hardware.cores import usable_cores
from rankless.printing import ProgressBar

Item = TypeVar("Item")
Made = TypeVar("Made")
_AHEAD = 4096  # number of items to submit at once; a million futures would use a gigabyte


def thread_map(work: Callable[[Item], Made], items: Sequence[Item], what: str) -> Iterator[Made]:
    """Call ``work`` on every item in threads, and yield the results in order.

    Pillow's decoders, hashing and file access release the GIL.
    """
    with ProgressBar(len(items), what) as bar, ThreadPoolExecutor(usable_cores()) as pool:
        for first in range(0, len(items), _AHEAD):
            for made in pool.map(work, items[first : first + _AHEAD]):
                bar.advance()
                yield made
