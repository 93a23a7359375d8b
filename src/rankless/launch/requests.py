"""Record signals that ask a launcher to stop, so that it can handle them later."""

from __future__ import annotations

import signal
import time
from typing import Any

from rankless.hardware.processes import STOP_SIGNALS

TWICE = 0.25  # seconds within which two signals count as one: ``timeout`` and some schedulers send each twice


class Requests:
    """A context manager that records SIGTERM, SIGINT, SIGHUP and SIGUSR1 unless they are ignored."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.hurry = False  # whether a second signal followed
        self._at = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Requests:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                try:
                    self._before[number] = signal.signal(number, self._note)
                except ValueError:  # only the main thread can handle signals
                    break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ask(self, number: int) -> None:
        """Record a request that did not arrive as a signal."""
        self._note(number, None)

    def _note(self, number: int, frame: object) -> None:
        outer = getattr(self._before.get(signal.Signals(number)), "__self__", None)
        if isinstance(outer, Requests):  # a context around this one
            outer._note(number, frame)
        if self.first is None:
            self.first, self._at = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._at > TWICE:
            self.hurry = True
