"""The output of trials: a row per trial on the terminal, and a log file per run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from types import TracebackType
from typing import TextIO

from rankless.errors import escaped
from rankless.launch.tuning.record import Record, Trial
from rankless.runs.directory import RunDirectory

LOG = "output.log"
"""Name of the file with a training's output in the run's ``logs`` directory."""
_SHARED = ".output"


class TrialOutput:
    """A context that redirects standard output and error of this process and its children to a file.

    The terminal shows a header and a row per trial; a trial's result replaces the row of the running trial.
    The fork server keeps the streams it was started with, so all trials share one file. After a trial, its
    part of the file moves to its run.
    """

    def __init__(self, record: Record) -> None:
        self._record, self._path, self._run = record, record.folder / _SHARED, record.folder

    def __enter__(self) -> TrialOutput:
        self._flush()
        self._before = {stream: os.dup(stream) for stream in (1, 2)}
        self._terminal: TextIO = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, buffering=1)
        self._is_live = self._terminal.isatty()
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o666)
        for stream in self._before:
            os.dup2(self._file, stream)
        self._print(self._record.header())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._keep()
        for stream, before in self._before.items():
            os.dup2(before, stream)
            os.close(before)
        os.close(self._file)
        self._terminal.close()
        self._path.unlink(missing_ok=True)

    def began(self, trial: Trial) -> None:
        """Show a trial that starts or resumes."""
        self._run = self._record.run(trial.number)
        if self._is_live:
            self._print(self._record.row(trial), end="\r")

    def ended(self, trial: Trial, *, is_best: bool) -> None:
        """Print the row of a finished trial, with a star if it is the best so far."""
        self._keep()
        star = "  *" if is_best else ""
        clear = "\x1b[K" if self._is_live else ""
        self._print(f"{self._record.row(trial)}{star}", before=clear)

    def _keep(self) -> None:
        """Move the output so far to the end of the run's log."""
        self._flush()
        printed = os.pread(self._file, os.fstat(self._file).st_size, 0)
        if printed:
            logs = RunDirectory(self._run).logs
            logs.mkdir(parents=True, exist_ok=True)
            with (logs / LOG).open("ab") as file:
                file.write(printed)
        os.ftruncate(self._file, 0)

    def _print(self, line: str, *, before: str = "", end: str = "\n") -> None:
        print(f"{before}{escaped(line)}", end=end, file=self._terminal, flush=True)

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
