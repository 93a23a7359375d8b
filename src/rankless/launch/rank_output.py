"""Where what a rank prints goes: rank 0's to the terminal, everything else into the ranks' logs."""

from __future__ import annotations

import os
import sys
import tempfile

from rankless.launch.job import log_of
from rankless.launch.rank_log import log_or_nothing, streams_of
from rankless.runs.directory import RunDirectory
from rankless.runs.journal import ending


class RankOutput:
    """The standard output and error of a rank that a cluster's launcher has started.

    Until the run directory is known, those of ranks other than 0 go into a file without a name.

    Args:
        rank: this rank's number.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._streams = streams_of(rank)
        _flush()
        self._before = {stream: os.dup(stream) for stream in self._streams}
        self._early = tempfile.TemporaryFile() if rank else None  # noqa: SIM115  # as long as the rank
        if self._early:
            self._send_to(self._early.fileno())

    def log_to(self, run: RunDirectory, verb: str) -> None:
        """From now on write to this rank's log in the run directory; nothing where that cannot be made."""
        log = log_or_nothing(log_of(run.logs, self.rank), ending(run.journal) or f"{verb} begins")
        _flush()
        if self._early:
            os.write(log, os.pread(self._early.fileno(), 1 << 20, 0))
        self._send_to(log)
        os.close(log)

    def to_terminal(self) -> None:
        """Let this rank's errors be seen again."""
        _flush()
        for stream, before in self._before.items():
            os.dup2(before, stream)

    def _send_to(self, descriptor: int) -> None:
        for stream in self._streams:
            os.dup2(descriptor, stream)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
