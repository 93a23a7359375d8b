"""Hosts that were lost, on their way back: reached again, compared, and given the run, while others train.

Nothing of it keeps a round from going on: a host that cannot join after all ends nobody's round.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from rankless.launch.hosts import preflight
from rankless.launch.hosts.gang import Gang, Member
from rankless.launch.hosts.training import Training

_RETRY = 5.0  # seconds between two attempts to reach a host that was lost
_LONGEST = 300.0  # seconds between two attempts to take back a host that could be reached and was of no use
_REPORTED = 4  # refusals for one reason before it is reported: the run there may just be ending


class Returning:
    """Which hosts hold the run, and the others.

    Args:
        gang: all hosts.
        warn: called with a sentence about what happened.

    Attributes:
        joined: the indices of hosts whose run directory is locked.
    """

    def __init__(self, gang: Gang, warn: Callable[[str], None]) -> None:
        self.gang, self.warn = gang, warn
        self.joined: set[int] = set()
        self._asked: dict[int, str] = {}  # what a host that has come back is being asked
        self._refused: Counter[int] = Counter()
        self._reasons: Counter[tuple[int, str]] = Counter()
        self._retry_at: dict[int, float] = {}

    def lost(self) -> list[Member]:
        """The hosts that have been lost since this was called last."""
        found = [member for member in self.gang.members if member.lost and member.index in self.joined]
        for member in found:  # its process has gone, and the lock with it
            self.joined.discard(member.index)
            self._wait(member)
        return found

    def leave_out(self, member: Member, why: str) -> None:
        """Give up a host that can be reached, but is of no use now; it is tried less and less often."""
        self._refused[member.index] += 1
        self._reasons[member.index, why] += 1
        if member.index not in self.joined and self._reasons[member.index, why] == _REPORTED:
            self.warn(f"{member.name} cannot join: {why}")
        if not member.lost:
            self.gang.lose(member, why)
        self._wait(member)

    def has_trained(self) -> None:
        """Those that are there have done some good."""
        for index in self.joined:
            del self._refused[index]

    def look(self, training: Training, token: str) -> bool:
        """Reach for lost hosts now and then, and ask those that answer; whether one has joined.

        Args:
            training: what they are to take part in.
            token: of this start.
        """
        now, found = time.monotonic(), False
        for member in self.gang.members:
            if member.index in self.joined:
                continue
            if member.lost:
                if member.index in self._asked:  # it went again
                    self._wait(member)
                elif now > self._retry_at.get(member.index, 0.0):
                    self._wait(member)
                    self.gang.connect([member])
            elif member.is_ready:
                found |= self._ask(member, training, token)
        return found

    def _ask(self, member: Member, training: Training, token: str) -> bool:
        """One question after another; whether this was the last one, and answered well."""
        request = {"recipe": training.json(member), "run": str(training.run)}
        asked = self._asked.get(member.index)
        if asked is None:
            self._asked[member.index] = "facts"
            self.gang.order(member, "facts", **request)
            return False
        if not member.replies:
            return False
        reply = member.replies.popleft()
        problems = list(reply.get("problems", ()))
        if asked == "facts" and not problems:
            member.facts = reply["facts"]
            there = [m for m in self.gang.members if m.index in self.joined and m.facts]
            problems = preflight.problems([*there, member])
        if problems:
            self.leave_out(member, "; ".join(problems))
        elif asked == "facts":
            self._asked[member.index] = "begin"
            self.gang.order(member, "begin", **training.beginning(member, token, resume=True))
        else:
            del self._asked[member.index]
            self.joined.add(member.index)
            self.warn(f"{member.name} is back")
            return True
        return False

    def _wait(self, member: Member) -> None:
        self._asked.pop(member.index, None)
        member.facts = {}
        seconds = min(_RETRY * 2 ** min(self._refused[member.index], 10), _LONGEST)
        self._retry_at[member.index] = time.monotonic() + seconds
