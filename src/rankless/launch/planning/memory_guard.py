"""A memory limit for a process that measures whether a size fits."""

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
    """Kill a process that uses more than ``limit`` bytes (0: no limit), and append its usage to the result.

    Without a limit, the kernel might kill another process instead.
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
