"""A limit on the memory of a process that is tried out."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rankless.hardware import memory

_POLL = 0.05  # seconds


@contextmanager
def guarded(pid: int, limit: int) -> Iterator[list[int]]:
    """Kill the process if it takes more memory than the limit, and append its memory to the list.

    Otherwise the kernel would end whatever it likes best.

    Args:
        pid: of the process.
        limit: bytes; 0 is none.
    """
    over: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while limit and not ended.wait(_POLL):
            if (taken := memory.peak(pid)) > limit:
                over.append(taken)
                os.kill(pid, signal.SIGKILL)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield over
    finally:
        ended.set()
        watcher.join()
