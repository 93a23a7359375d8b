"""How far a scan is: a bar in a terminal, else a line every ten seconds; nothing if it is soon done."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

EVERY = 10.0
"""Seconds between two lines."""


class ScanProgress:
    """Tells on the standard error how many of ``total`` are done; a context manager.

    Args:
        total: how many.
        what: several of them: ``images``.
    """

    def __init__(self, total: int, what: str) -> None:
        self.total, self.what, self.done = total, what, 0
        self._told = time.monotonic()
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
            self._task = self._bar.add_task(f"reading {what}", total=total)

    def advance(self, count: int) -> None:
        """So many more are done."""
        self.done += count
        if self._bar:
            self._bar.advance(self._task, count)
        elif time.monotonic() - self._told >= EVERY:
            self._told = time.monotonic()
            print(f"reading {self.what}: {self.done} of {self.total}", file=sys.stderr, flush=True)

    def __enter__(self) -> ScanProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
