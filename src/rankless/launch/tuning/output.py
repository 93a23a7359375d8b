"""The output of trials: a log in each run, so that the terminal has one row per trial."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO

from rankless.runs.directory import RunDirectory

LOG = "output.log"
"""In a run's ``logs``: what its training printed."""
_SHARED = ".output"


class TrialOutput:
    """Sends the standard output and error of this process, and of all that it starts, into a file.

    A process that forks ranks keeps the streams that it was started with, so there is one file for all
    trials, from which each trial's part is moved into its run. A context manager.

    Attributes:
        run: of the trial that prints.
        terminal: the standard output as it was.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _SHARED
        self.run = folder

    def __enter__(self) -> TrialOutput:
        self._flush()
        self._before = {stream: os.dup(stream) for stream in (1, 2)}
        self.terminal: TextIO = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, buffering=1)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o666)
        for stream in self._before:
            os.dup2(self._file, stream)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self.keep()
        for stream, before in self._before.items():
            os.dup2(before, stream)
            os.close(before)
        os.close(self._file)
        self.terminal.close()
        self._path.unlink(missing_ok=True)

    def keep(self) -> None:
        """Move the output so far to the end of the run's log."""
        self._flush()
        printed = os.pread(self._file, os.fstat(self._file).st_size, 0)
        if printed:
            logs = RunDirectory(self.run).logs
            logs.mkdir(parents=True, exist_ok=True)
            with (logs / LOG).open("ab") as file:
                file.write(printed)
        os.ftruncate(self._file, 0)

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
