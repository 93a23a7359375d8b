"""Which ranks hang: those that are stopped, or are at one thing for longer than that may take.

A rank that waits for another one does not hang: the other one does. Seconds are counted while this process
is awake itself: a machine that slept, or a job that its cluster suspended for a while, makes nobody late.
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
STOPPED = 60.0
"""Seconds that a process may be stopped, where the user gives no number."""
FORK_SERVER = -1
"""Stands for the process that forks the ranks, which tells nothing of itself."""
_EVERY = 1.0  # seconds between two looks


def patience() -> float | None:
    """The seconds after which a rank hangs, as the user has set them; None leaves that to the ranks.

    Raises:
        UserError: no number of seconds.
    """
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
class _Seen:
    """What was seen of a process.

    Attributes:
        begun: what it had begun when it was last seen to get on.
        since: seconds for which it has not got on.
        stopped: seconds for which it has been stopped.
    """

    begun: int = -1
    since: float = 0.0
    stopped: float = 0.0


class Hanging:
    """Judges processes while they run; those of one round.

    Args:
        pulse: how far a rank is, given its number and its process; None where that is not known.
        clock: of this process.

    Raises:
        UserError: the user's number of seconds is none.
    """

    def __init__(
        self, pulse: Callable[[int, int], Pulse | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pulse, self._clock, self._patience = pulse, clock, patience()
        self._looked = clock()
        self._seen: dict[int, _Seen] = {}

    def look(self, processes: Mapping[int, int]) -> dict[int, str]:
        """Those that hang, with a sentence about each.

        Args:
            processes: by rank.
        """
        passed = self._clock() - self._looked
        if passed < _EVERY:
            return {}
        self._looked += passed
        passed = min(passed, 2 * _EVERY)
        stopped, late = dict[int, str](), dict[int, str]()
        for rank, pid in processes.items():
            seen = self._seen.setdefault(pid, _Seen())
            pulse = None if rank == FORK_SERVER else self._pulse(rank, pid)
            seen.stopped = seen.stopped + passed if is_stopped(pid) else 0.0
            seen.since = 0.0 if pulse is None or pulse.begun != seen.begun else seen.since + passed
            seen.begun = pulse.begun if pulse else -1
            doing = f" ({pulse.doing})" if pulse else ""
            if seen.stopped > (self._patience or STOPPED):
                stopped[rank] = f"rank {rank} was stopped for {seen.stopped:.0f} s{doing} and then killed"
            elif pulse and seen.since > self._allowed(pulse):
                late[rank] = f"rank {rank} hung for {seen.since:.0f} s{doing} and was killed"
        # Others may be late because of one that is stopped: what a GPU waits for is not seen.
        return stopped or late

    def _allowed(self, pulse: Pulse) -> float:
        if pulse.allowed is None:
            return math.inf
        if self._patience is None:
            return pulse.allowed
        return self._patience if pulse.begun else max(self._patience, pulse.allowed)


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"T"]
    except OSError:
        return False
