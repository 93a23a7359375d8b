"""Detect ranks that were stopped, or whose current work takes too long.

A rank that waits for another rank does not hang. Only time during which this process is running counts, so
ranks do not appear to hang when the machine sleeps or the job is suspended.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rankless.errors import UserError
from rankless.launch.job import Pulse

VARIABLE = "RANKLESS_PATIENCE"
STOPPED = 60.0  # default limit in seconds on how long a process may be stopped
FORK_SERVER = -1  # stands for the fork server, which has no pulse, in place of a rank
_EVERY = 1.0  # seconds between two checks


def patience() -> float | None:
    """Return the user's time limit in seconds for hanging ranks, or None if it is not set."""
    text = os.environ.get(VARIABLE, "")
    if text == "off":
        return math.inf
    try:
        seconds = float(text or 1)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise UserError(f"{VARIABLE} is '{text}': expected a number of seconds above 0, or 'off'")
    return seconds if text else None


@dataclass
class _Observation:
    begun: int = -1  # as in the last pulse; -1 without a pulse
    since: float = 0.0  # seconds without progress
    stopped: float = 0.0  # seconds for which the process has been stopped


class HangDetector:
    """Detects hanging ranks in one round. ``pulse(rank, pid)`` returns the pulse of a rank."""

    def __init__(
        self, pulse: Callable[[int, int], Pulse | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pulse, self._clock, self._patience = pulse, clock, patience()
        self._checked = clock()
        self._seen: dict[int, _Observation] = {}

    def check(self, processes: Mapping[int, int]) -> dict[int, str]:
        """Return a message for each hanging rank; ``processes`` maps ranks to process IDs."""
        passed = self._clock() - self._checked
        if passed < _EVERY:
            return {}
        self._checked += passed
        passed = min(passed, 2 * _EVERY)
        stopped, late = dict[int, str](), dict[int, str]()
        for rank, pid in processes.items():
            seen = self._seen.setdefault(pid, _Observation())
            pulse = None if rank == FORK_SERVER else self._pulse(rank, pid)
            seen.stopped = seen.stopped + passed if is_stopped(pid) else 0.0
            seen.since = 0.0 if pulse is None or pulse.begun != seen.begun else seen.since + passed
            seen.begun = pulse.begun if pulse else -1
            doing = f" ({pulse.doing})" if pulse else ""
            if seen.stopped > (self._patience or STOPPED):
                stopped[rank] = f"rank {rank} was stopped for {seen.stopped:.0f} s{doing} and then killed"
            elif pulse and seen.since > self._allowed(pulse):
                late[rank] = f"rank {rank} hung for {seen.since:.0f} s{doing} and was killed"
        # Other ranks may be late only because they wait for a stopped rank; waiting on a GPU is not visible.
        return stopped or late

    def _allowed(self, pulse: Pulse) -> float:
        if pulse.allowed is None:
            return math.inf
        if self._patience is None:
            return pulse.allowed
        return self._patience if pulse.begun else max(self._patience, pulse.allowed)


def is_stopped(pid: int) -> bool:
    """Check whether a process was stopped by a signal."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"T"]
    except OSError:
        return False
