"""The one supervisor: it runs rounds of ranks until they are done, on this machine or on several.

A round is one start of all ranks, on all hosts, and goes on from the newest checkpoint. There is no further
round when the ranks ended on purpose, when the supervisor was asked to stop, or when restarts do not help.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from rankless.errors import UserError, escaped
from rankless.launch.job import LOST_PEER, error_in
from rankless.printing import warn

GRACE = 600.0  # seconds for the step under way and its checkpoint; a second signal ends it at once
HOPELESS = 3  # restarts without a step forward


class Death(msgspec.Struct):
    """One death, as the journal records it.

    Attributes:
        rank: None for the process that forks the ranks, and for a host.
        code: how the process ended; the negative number of the signal that killed it.
        text: the same as a sentence.
    """

    rank: int | None
    code: int
    text: str


class Failure(msgspec.Struct):
    """How a rank failed by itself.

    Attributes:
        code: of its process.
        cause: the reason as a sentence.
        traceback: the end of its log.
    """

    code: int
    cause: str
    traceback: list[str] = []


class RoundEnd(msgspec.Struct):
    """How a round ended, on one host or on all of them.

    Attributes:
        notes: what the ranks left about their end, the first rank's first.
        failed: ranks that failed by themselves, by number; not those that were killed because of them.
        signal: the signal that ended the round, 0 without one.
        step: the newest saved step.
        fork_server: how the process that forks the ranks died; None if it did not.
        traces: of a dry run on several hosts, by rank.
        lost: names of the hosts that were lost.
        regrouping: whether the round was asked to end so that a host may join.
        hopeless: whether the supervisor gave up after it.
    """

    notes: list[dict[str, Any]] = []
    failed: dict[int, Failure] = {}
    signal: int = 0
    step: int = 0
    fork_server: Death | None = None
    traces: dict[int, str] = {}
    lost: list[str] = []
    regrouping: bool = False
    hopeless: bool = False

    @classmethod
    def merged(cls, ends: Sequence[RoundEnd], lost: Sequence[str], *, regrouping: bool) -> RoundEnd:
        """The end of a round, from its ends on the hosts that did not get ``lost`` in it."""
        return cls(
            notes=[note for end in ends for note in end.notes],
            failed={rank: failure for end in ends for rank, failure in end.failed.items()},
            signal=next((end.signal for end in ends if end.signal), 0),
            step=max((end.step for end in ends), default=0),
            fork_server=next((end.fork_server for end in ends if end.fork_server), None),
            traces={rank: text for end in ends for rank, text in end.traces.items()},
            lost=list(lost),
            regrouping=regrouping,
        )

    @property
    def note(self) -> dict[str, Any]:
        """The first note; empty without one."""
        return self.notes[0] if self.notes else {}

    @property
    def error(self) -> UserError | None:
        """The error that ranks met and that a restart would only meet again."""
        return error_in(self.notes)

    @property
    def is_finished(self) -> bool:
        """Whether all steps are done."""
        return any(note.get("finished") for note in self.notes)

    @property
    def stopped_by(self) -> int:
        """The signal that somebody sent to a host or to a rank, 0 without one."""
        if self.regrouping:  # that was the supervisor's
            return 0
        return self.signal or next((note["signal"] for note in self.notes if note.get("signal")), 0)

    @property
    def has_failed(self) -> bool:
        """Whether a rank or a host was lost."""
        return bool(self.failed or self.lost)

    @property
    def is_final(self) -> bool:
        """Whether there is nothing to start again."""
        if self.error or self.is_finished or self.stopped_by:
            return True
        # A rank that could not even leave a note shows by its code that it ended on purpose.
        if any(failure.code == UserError.exit_code for failure in self.failed.values()):
            return True
        return not self.regrouping and (bool(self.notes) or not self.has_failed)

    @property
    def culprit(self) -> int | None:
        """The rank that is the cause: one that a signal killed, else one with an error of its own."""
        codes = {rank: failure.code for rank, failure in self.failed.items()}
        return min(codes, key=lambda rank: (codes[rank] == LOST_PEER, codes[rank]), default=None)

    @property
    def why(self) -> str:
        """The reason, as a clause."""
        if self.lost:
            return f"without {', '.join(self.lost)}"
        if self.fork_server:
            return self.fork_server.text
        return "the ranks ended" if self.culprit is None else self.failed[self.culprit].cause

    @property
    def deaths(self) -> list[Death]:
        """All deaths that no other one caused; the one that is the reason comes last."""
        if self.fork_server:
            return [self.fork_server]
        ranks = sorted(self.failed, key=lambda rank: rank == self.culprit)
        return [
            Death(rank, failure.code, failure.cause)
            for rank, failure in ((rank, self.failed[rank]) for rank in ranks)
            if rank == self.culprit or failure.code != LOST_PEER
        ]


def how_it_ended(code: int) -> str:
    """How a process ended, as the end of a sentence."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "lost the connection to the others" if code == LOST_PEER else f"ended with code {code}"


class Progress:
    """Counts restarts that did not get a checkpoint further.

    Args:
        step: the newest saved step before the first round.
    """

    def __init__(self, step: int) -> None:
        self.step, self.stuck = step, 0

    def count(self, step: int) -> bool:
        """Note how far a round has come; whether it saved anything new."""
        further = step > self.step
        self.stuck = 0 if further else self.stuck + 1
        self.step = max(self.step, step)
        return further


class Hosts(Protocol):
    """The hosts of a job, of which this machine without SSH is one."""

    progress: Progress

    def rounds(self) -> Iterator[RoundEnd]:
        """Run a round whenever the next one is asked for; ends when there are too few hosts for one."""

    def record(self, end: RoundEnd) -> None:
        """Record how far a round got, and write the ranks that died to the run's journal."""

    def resumes(self, end: RoundEnd) -> str:
        """From where, and on which hosts, the next round starts."""


def supervise(hosts: Hosts, report: Callable[[str], None] = warn) -> RoundEnd | None:
    """Run rounds until the ranks are done, and report why each ended.

    Args:
        hosts: where the ranks run.
        report: called with a sentence about what happened.

    Returns:
        How the last round ended; None if there were too few hosts for another one.
    """
    for end in hosts.rounds():
        if end.is_final:
            return end
        if end.regrouping and not end.has_failed:
            continue
        hosts.record(end)
        if hosts.progress.stuck > HOPELESS:
            report(f"{end.why}; {HOPELESS} restarts did not get a checkpoint further, giving up")
            for line in end.failed[end.culprit].traceback if end.culprit is not None else ():
                print(escaped(line), file=sys.stderr)
            end.hopeless = True
            return end
        report(f"{end.why}; restarting from {hosts.resumes(end)}")
    return None


def where_from(step: int | None) -> str:
    """Say where the ranks restart from; ``step`` is the last saved step, 0 if none, None if unknown."""
    if step is None:
        return "the newest checkpoint, if there is one,"
    return "the newest checkpoint" if step else "the beginning, as nothing was saved yet"
