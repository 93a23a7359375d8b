"""A memory limit for a process that tries out a size."""

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

    Without the limit, the kernel might kill another process. The limit is in bytes; 0 means no limit.
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
