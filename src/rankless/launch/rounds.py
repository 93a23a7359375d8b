"""Run rounds of ranks on one or several machines until the training is done.

A round is one start of all ranks on all hosts, and continues from the newest checkpoint. Another round
follows unless the ranks ended on purpose, a stop was requested, or restarts do not help.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from rankless.errors import LOST_PEER, UserError, escaped
from rankless.launch.job import LEFT_OUT, error_in
from rankless.printing import warn

GRACE = 600.0  # seconds for the current step and its checkpoint; a second signal ends the ranks at once
HOPELESS = 3  # restarts without progress


class Death(msgspec.Struct):
    """The death of a rank, the fork server or a host, as recorded in the journal."""

    rank: int | None  # None for the fork server or a host
    code: int  # negative for a signal
    text: str


class Failure(msgspec.Struct):
    """The failure of a rank, with its exit code, its cause, and the last traceback in its log.

    ``exception`` is the Python exception that ended the rank; empty if something else ended it.
    """

    code: int
    cause: str
    traceback: list[str] = []
    exception: str = ""


class RoundEnd(msgspec.Struct):
    """The outcome of a round, on one host or on all hosts."""

    notes: list[dict[str, Any]] = []  # in the order of the ranks
    failed: dict[int, Failure] = {}  # by rank, without ranks that were killed because another one failed
    signal: int = 0
    step: int = 0  # newest saved step
    fork_server: Death | None = None
    traces: dict[int, str] = {}  # by rank, of a dry run on several hosts
    lost: list[str] = []  # names of hosts
    regrouping: bool = False  # whether the round was stopped so that a host can join

    @classmethod
    def merged(cls, ends: Sequence[RoundEnd], lost: Sequence[str], *, regrouping: bool) -> RoundEnd:
        """Combine the outcomes of a round on the hosts that were not lost."""
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
        """The first note that a rank left; empty if there is none."""
        return self.notes[0] if self.notes else {}

    @property
    def error(self) -> UserError | None:
        """The error that the ranks reported; None if there is none."""
        return error_in(self.notes)

    @property
    def is_finished(self) -> bool:
        return any(note.get("finished") for note in self.notes)

    @property
    def stopped_by(self) -> int:
        """The signal that stopped a rank or a host; 0 if there was none."""
        if self.regrouping:  # sent by this program, not by a user
            return 0
        return self.signal or next((note["signal"] for note in self.notes if note.get("signal")), 0)

    @property
    def has_failed(self) -> bool:
        return bool(self.failed or self.lost)

    @property
    def is_final(self) -> bool:
        if self.error or self.is_finished or self.stopped_by:
            return True
        # Even without a note, the exit code of a rank shows that it ended on purpose.
        if any(failure.code == UserError.exit_code for failure in self.failed.values()):
            return True
        return not self.regrouping and (bool(self.notes) or not self.has_failed)

    @property
    def left_out(self) -> list[int]:
        """The ranks whose devices must not be used again."""
        return [rank for rank, failure in self.failed.items() if failure.code == LEFT_OUT]

    @property
    def culprit(self) -> int | None:
        """The rank whose failure ended the round, preferably not one that merely lost a peer."""
        codes = {rank: failure.code for rank, failure in self.failed.items()}
        return min(codes, key=lambda rank: (codes[rank] == LOST_PEER, codes[rank]), default=None)

    @property
    def exception(self) -> str:
        """The Python exception that ended the round; empty if something else ended it."""
        if self.lost or self.fork_server or self.culprit is None:
            return ""
        return self.failed[self.culprit].exception

    @property
    def why(self) -> str:
        """The reason why the round ended, as a clause."""
        if self.lost:
            return f"lost {', '.join(self.lost)}"
        if self.fork_server:
            return self.fork_server.text
        return "the ranks ended" if self.culprit is None else self.failed[self.culprit].cause

    @property
    def deaths(self) -> list[Death]:
        """The deaths that were not caused by other deaths, ending with the culprit's death."""
        if self.fork_server:
            return [self.fork_server]
        ranks = sorted(self.failed, key=lambda rank: rank == self.culprit)
        return [
            Death(rank, failure.code, failure.cause)
            for rank, failure in ((rank, self.failed[rank]) for rank in ranks)
            if rank == self.culprit or failure.code != LOST_PEER
        ]


def how_it_ended(code: int) -> str:
    """Describe how a process ended, as in ``was killed by SIGKILL``."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "lost the connection to the other ranks" if code == LOST_PEER else f"ended with code {code}"


class Progress:
    """Counts consecutive rounds without progress."""

    def __init__(self, step: int) -> None:
        self.step, self.stuck = step, 0

    def count(self, step: int) -> bool:
        """Record the newest saved step after a round, and return whether the round has made progress."""
        further = step > self.step
        self.stuck = 0 if further else self.stuck + 1
        self.step = max(self.step, step)
        return further


class Hosts(Protocol):
    """The hosts that run a job: this machine, or several machines over SSH."""

    progress: Progress

    def rounds(self) -> Iterator[RoundEnd]:
        """Run rounds while there are enough hosts, and yield the outcome of each round."""

    def record(self, end: RoundEnd) -> None:
        """Record the progress and the deaths of a round."""

    def resumes(self, end: RoundEnd) -> str:
        """Describe the checkpoint and the hosts with which the next round starts."""


def supervise(hosts: Hosts, report: Callable[[str], None] = warn) -> RoundEnd | None:
    """Run rounds until the ranks are done, and report why each round ended.

    Return the outcome of the last round, or None if there are too few hosts for another round.
    """
    before = ""
    for end in hosts.rounds():
        if end.is_final:
            return end
        if end.regrouping and not end.has_failed:
            continue
        hosts.record(end)
        # Code raises the same exception again. Killed ranks and lost connections are tried several times.
        is_same = bool(end.exception) and end.exception == before and hosts.progress.stuck > 0
        before = end.exception
        if is_same or hosts.progress.stuck > HOPELESS:
            after = f" after {HOPELESS} restarts without a new checkpoint"
            report(f"{end.why}; giving up{', because a restart ended in the same way' if is_same else after}")
            for line in end.failed[end.culprit].traceback if end.culprit is not None else ():
                print(escaped(line), file=sys.stderr)
            return end
        report(f"{end.why}; restarting from {hosts.resumes(end)}")
    return None


def where_from(step: int | None) -> str:
    """Describe where the ranks restart.

    ``step`` is the last saved step, 0 if nothing was saved, or None if it is unknown.
    """
    if step is None:
        return "the newest checkpoint (if any)"
    return "the newest checkpoint" if step else "the beginning (nothing was saved yet)"
