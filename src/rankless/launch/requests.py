"""Signals that ask a launcher to stop: noted when they come, looked at when it suits."""

from __future__ import annotations

import signal
import time
from types import TracebackType
from typing import Any

# SIGUSR1 is what Slurm and spot markets send before the end comes.
ASKS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
TWICE = 0.25  # seconds within which two signals are one: ``timeout`` and some schedulers send each twice


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
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ask(self, number: int) -> None:
        """Record a request that arrived by some means other than a signal."""
        self._note(number, None)

    def _note(self, number: int, _: object) -> None:
        if self.first is None:
            self.first, self._at = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._at > TWICE:
            self.hurry = True
