"""Redirect the output of ranks to log files, except for rank 0's standard output."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rankless.launch.job import log_of
from rankless.runs.directory import RunDirectory
from rankless.runs.journal import ending

LIMIT = 4 << 20  # bytes; the next start renames a larger log to .log.1
_START = "=== "
_PREFIX = re.compile(r"^\[rank\d+\]: ")
"""What PyTorch writes in front of the lines of an exception while a process group exists."""
_FRAME = re.compile(r' +File "(.*)", line (\d+)')
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def open_log(path: Path, why: str) -> int:
    """Open a log for appending, write a header that gives the reason, and return the descriptor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LIMIT:
        path.replace(path.with_name(f"{path.name}.1"))
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        number = sum(line.startswith(_START) for line in _lines(path)) + 1
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        header = f"{_START}{now}  start {number} in this file, process {os.getpid()}: {why}\n"
        os.write(log, header.encode("utf-8", errors="replace"))
    except BaseException:
        os.close(log)
        raise
    return log


def streams_of(rank: int) -> tuple[int, ...]:
    """Return the descriptors of the streams that go into a rank's log."""
    return (1, 2) if rank else (2,)  # libraries print to standard error, too


def log_or_nothing(path: Path, why: str) -> int:
    """Open a log with :func:`open_log`, or the null device if that fails."""
    try:
        return open_log(path, why)
    except OSError:  # a full disk, which is reported elsewhere
        return os.open(os.devnull, os.O_WRONLY)


def last_start(path: Path) -> list[str]:
    """Return the lines that the last start has written to a log, or an empty list if it cannot be read."""
    try:
        lines = [_PREFIX.sub("", line) for line in _lines(path)]
    except OSError:
        return []
    starts = [number for number, line in enumerate(lines) if line.startswith(_START)]
    return lines[starts[-1] + 1 :] if starts else lines


def last_traceback(lines: Sequence[str]) -> list[str]:
    """Return the lines from the last traceback onwards, or an empty list if there is none."""
    numbers = [number for number, line in enumerate(lines) if line.startswith("Traceback")]
    return list(lines[numbers[-1] :]) if numbers else []


def exception_in(lines: Sequence[str]) -> str:
    """Return the last line of a traceback and where it was raised, or "" if there is no traceback.

    Addresses in memory are left out, so that the text is the same whenever the exception is.
    """
    found, where = "", ""
    for line in lines:
        if frame := _FRAME.match(line):
            found, where = "", f"{frame[1]}:{frame[2]}"
        elif where and not found and line and not line.startswith(" "):
            found = _ADDRESS.sub("0x…", line)
    return f"{found} ({where})" if found else ""


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


class RankOutput:
    """The standard output and error of a rank that a cluster's launcher has started.

    Until the run directory is known, the output of ranks other than 0 goes into an unnamed temporary file.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._streams = streams_of(rank)
        _flush()
        self._before = {stream: os.dup(stream) for stream in self._streams}
        self._early = tempfile.TemporaryFile() if rank else None  # noqa: SIM115  # open while the rank runs
        if self._early:
            self._send_to(self._early.fileno())

    def log_to(self, run: RunDirectory, verb: str) -> None:
        """Redirect the output to this rank's log in the run directory, or discard it if that fails."""
        log = log_or_nothing(log_of(run.logs, self.rank), ending(run.journal) or f"{verb} starts")
        _flush()
        if self._early:
            os.write(log, os.pread(self._early.fileno(), 1 << 20, 0))
        self._send_to(log)
        os.close(log)

    def to_terminal(self) -> None:
        """Restore the original output."""
        _flush()
        for stream, before in self._before.items():
            os.dup2(before, stream)

    def _send_to(self, descriptor: int) -> None:
        for stream in self._streams:
            os.dup2(descriptor, stream)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
