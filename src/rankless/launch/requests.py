"""Signals that ask a launcher to stop: noted when they come, looked at when it suits.

Torch's own handlers raise wherever the program happens to be, take over a SIGHUP that ``nohup`` asked to
ignore, and stay when the work is done.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

# SIGUSR1 is what Slurm and spot markets send before the end comes.
ASKS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
TWICE = 0.25  # seconds within which two signals are one: ``timeout`` and some schedulers send each twice
_TORCH = "TORCHELASTIC_SIGNALS_TO_HANDLE"


@contextmanager
def undisturbed() -> Iterator[None]:
    """Inside, no request comes; handlers that are replaced in it are put back.

    PyTorch 2.9 sets its own when it starts processes, whatever its variable says; later ones obey it.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ASKS)
    handlers = {number: signal.getsignal(number) for number in (*ASKS, signal.SIGQUIT)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None:  # not set from Python
                    signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class Requests:
    """While it is entered, SIGTERM, SIGINT, SIGHUP and SIGUSR1 are noted, unless they were being ignored.

    Attributes:
        first: the first signal that came.
        hurry: whether another one came after it.
    """

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.hurry = False
        self._at = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Requests:
        os.environ[_TORCH] = "none"
        for number in ASKS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                try:
                    self._before[number] = signal.signal(number, self._note)
                except ValueError:  # not the main thread: signals are somebody else's business
                    break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.environ.pop(_TORCH, None)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ask(self, number: int) -> None:
        """Note a request that has come by another way than a signal."""
        self._note(number, None)

    def _note(self, number: int, _: object) -> None:
        if self.first is None:
            self.first, self._at = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._at > TWICE:
            self.hurry = True
