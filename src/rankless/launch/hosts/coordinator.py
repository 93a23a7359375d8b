"""Train on several hosts: begin there, run rounds of ranks, and go on with whoever answers when one is lost.

A round is one start of all ranks. It ends when the training does, when a rank or a host is lost, or when it
is asked to, so that a host that has come back may join. Every round goes on from the newest checkpoint.
"""

from __future__ import annotations

import shlex
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from rankless.errors import INTERRUPTED, STOPPED, UserError, counted, escaped
from rankless.launch.agent import HOPELESS
from rankless.launch.hosts import start
from rankless.launch.hosts.gang import Gang, Member, Way
from rankless.launch.hosts.names import Host
from rankless.launch.hosts.round_end import RoundEnd, is_failed
from rankless.launch.hosts.start import names
from rankless.launch.hosts.training import Training, Wanted
from rankless.launch.requests import Requests
from rankless.printing import say

_GRACE = 600.0  # seconds for the step under way and its checkpoint; a second signal ends it at once
_RETRY = 5.0  # seconds between two attempts to reach a host that was lost
_WAIT = 600.0  # seconds for hosts to come back when there are fewer than wanted


class Hurried(BaseException):
    """Asked to stop before there is anything to save, or a second time."""


class Coordinator:
    """One training on several hosts.

    Args:
        wanted: what was asked for.
        hosts: where.
        way: how hosts are reached.
        requests: signals that this process gets.

    Attributes:
        outcome: of a dry run: ``digest``, ``seconds`` of every step, ``world`` and ``traces`` by rank.
    """

    training: Training

    def __init__(self, wanted: Wanted, hosts: Sequence[Host], way: Way, requests: Requests) -> None:
        self.wanted, self.requests = wanted, requests
        self.gang = Gang(hosts, way, self._urgent)
        self.token = uuid.uuid4().hex
        self.begun: set[int] = set()  # indices of hosts whose run directory is locked
        self.has_started = False
        self.outcome: dict[str, Any] = {}
        self.deaths: list[dict[str, Any]] = []  # to be recorded by the next round's first host
        self.reached = self.stuck = self.number = 0

    def train(self) -> int:
        """Train to the end; the exit code.

        Raises:
            UserError: whatever is the user's to fix.
        """
        grace = 3.0
        try:
            return self._rounds() if self._start() else 0
        except Hurried:
            grace = 0.0
            by = self.requests.first or signal.SIGTERM
            how = "at once" if self.has_started else "before the training began"
            say(f"stopped by {by.name} {how}", file=sys.stderr)
            return INTERRUPTED if by is signal.SIGINT else STOPPED
        finally:
            self.gang.close(grace)

    def _urgent(self) -> None:
        if self.requests.hurry or (self.requests.first and not self.has_started):
            raise Hurried

    def _start(self) -> bool:
        """Begin on every host; False where the run that is to go on is finished."""
        wanted, members = self.wanted, self.gang.members
        start.connect(self.gang)
        run = wanted.run or start.choose_run(self.gang, wanted.name)
        newest = start.newest_holder(self.gang, run, resume=wanted.resume)
        recipe = wanted.recipe or start.recipe_there(self.gang, newest, run, wanted.overrides)
        launched = {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join(sys.argv),
            "hosts": [str(member.host) for member in members],
        }
        training = Training(recipe, run, wanted.devices, wanted.resume, wanted.sinks, launched)
        training = replace(training, dry_run_steps=wanted.dry_run_steps)
        for text in start.compare(self.gang, training, members):
            _warn(text)
        self.training, finished = start.prepare(self.gang, training, newest)
        if finished:
            say(
                f"{run}: this run is finished, at step {finished} of {finished}; for more, give more epochs "
                f"than {self.training.recipe.epochs}, as in epochs={2 * self.training.recipe.epochs}"
            )
            return False
        self.training.shares(members)
        for member in members:  # one after another: they may share a directory
            self._begin(member, resume=wanted.resume)
        start.find_addresses(self.gang, members)
        self.reached = newest.holds["step"] or 0
        self.has_started = True
        return True

    def _begin(self, member: Member, *, resume: bool) -> None:
        start.begin(self.gang, self.training, member, self.token, resume=resume)
        self.begun.add(member.index)

    def _rounds(self) -> int:
        while members := self._present():
            self._revive(members)
            end = self._round(members)
            end.raise_problems()
            if end.is_finished:
                return (
                    self._dry_run_done(members, end) if self.wanted.dry_run_steps else self._finished(members)
                )
            if by := self.requests.first or end.stopped_by:
                return self._stopped(by, end.step)
            if (end.is_failed or not end.regrouping) and not self._judge(end):
                return 1
        return self._stopped(self.requests.first, self.reached) if self.requests.first else 1

    def _present(self) -> list[Member]:
        """The hosts that answer; waits where there are too few. Empty when that took too long."""
        until, reported = time.monotonic() + _WAIT, False
        while self.requests.first is None:
            members = [member for member in self.gang.members if member.is_ready]
            if len(members) >= self.wanted.least:
                return members
            few = f"{counted(len(members), 'host')} left of {len(self.gang.members)}"
            if time.monotonic() > until:
                again = self.training.again(self.gang.members)
                say(
                    f"error: {few}, and --min-hosts is {self.wanted.least}; go on later with: {again}",
                    file=sys.stderr,
                )
                break
            if not reported:
                _warn(f"{few}, waiting for at least {self.wanted.least}")
                reported = True
            self._call_back()
            self.gang.pump(0.5)
        return []

    def _revive(self, members: list[Member]) -> None:
        """Begin on hosts that have come back, and find out who reaches whom now; drop those that fail."""
        for member in [member for member in members if member.index not in self.begun]:
            try:
                start.compare(self.gang, self.training, [member])
                self._begin(member, resume=True)
                _warn(f"{member.name} is back")
            except UserError as error:
                self._give_up(member, "; ".join(error.problems))
                members.remove(member)
        try:
            start.find_addresses(self.gang, members)
        except UserError as error:
            _warn("; ".join(error.problems))

    def _give_up(self, member: Member, why: str) -> None:
        if not member.lost:
            self.gang.lose(member, why)
        self._forget(member)

    def _forget(self, member: Member) -> None:
        """Its process has gone, and the lock with it."""
        self.begun.discard(member.index)
        member.facts = {}
        member.retry_at = time.monotonic() + _RETRY

    def _round(self, members: list[Member]) -> RoundEnd:
        """Run the ranks once."""
        if not members or members[0].lost:
            return RoundEnd({}, members[:1], regrouping=False)
        lead, counts = members[0], self.training.shares(members)
        self.gang.speaker = lead
        self.number += 1
        opened = self.gang.ask([lead], "open_store", lambda _: {"address": lead.own}).get(lead.index, {})
        if "port" not in opened:
            self._give_up(lead, "; ".join(opened.get("problems", ["it went before the ranks began"])))
            return RoundEnd({}, [lead], regrouping=False)
        first, size = 0, sum(counts.values())
        meeting = {"address": lead.own, "port": opened["port"], "size": size, "number": self.number}
        for member in members:
            here = {"ranks": counts[member.index], "first": first, "own": member.own, "deaths": self.deaths}
            self.deaths = []
            self.gang.tell(member, "round", job=asdict(self.training.job(member)), **here, **meeting)
            first += counts[member.index]
        return self._watch(members)

    def _watch(self, members: list[Member]) -> RoundEnd:
        """Wait until the round has ended on every host; pass on what is asked and what happens."""
        asked = abandoned = regrouping = False
        until = float("inf")
        while any(not member.replies and not member.lost for member in members):
            self.gang.pump(0.1)
            if self.requests.first is not None and not asked:
                asked, until = True, time.monotonic() + _GRACE
                self._tell_round(members, "request", int(self.requests.first))
            for member in members:
                if member.lost and member.index in self.begun:
                    text = f"lost {member.name} ({member.lost})"
                    _warn(text)
                    self.deaths.append({"rank": None, "code": 0, "text": text})
                    self._forget(member)
            failed = any(m.lost or (m.replies and is_failed(m.replies[0])) for m in members)
            if failed and not abandoned:
                abandoned = True
                self._tell_round([member for member in members if not member.replies], "abandon")
            if not (asked or failed or regrouping) and self._call_back():
                regrouping = True
                self._tell_round(members, "request", int(signal.SIGTERM))
            if time.monotonic() > until:
                raise Hurried
        replies = {member.index: member.replies.popleft() for member in members if member.replies}
        return RoundEnd(replies, [member for member in members if member.lost], regrouping)

    def _tell_round(self, members: Sequence[Member], what: str, number: int = 0) -> None:
        """Ask something of the round that runs: a ``request``, by a signal's number, or to ``abandon`` it."""
        for member in members:
            self.gang.tell(member, what, of=self.number, number=number)

    def _call_back(self) -> bool:
        """Try to reach lost hosts now and then; whether one is ready to join."""
        now = time.monotonic()
        for member in self.gang.members:
            if member.lost and now > member.retry_at:
                member.retry_at = now + _RETRY
                self.gang.connect([member])
        return any(member.is_ready and member.index not in self.begun for member in self.gang.members)

    def _judge(self, end: RoundEnd) -> bool:
        """Report why the round ended; whether there is hope."""
        self.stuck = 0 if end.step > self.reached else self.stuck + 1
        self.reached = max(self.reached, end.step)
        self.deaths += end.deaths
        if self.stuck > HOPELESS:
            _warn(f"{end.why}; {HOPELESS} restarts did not get a checkpoint further, giving up")
            for line in end.traceback:
                print(escaped(line), file=sys.stderr)
            look = f"look at {self.training.run}/logs on the hosts"
            again = self.training.again(self.gang.members)
            say(f"error: the ranks could not go on; {look}, then: {again}", file=sys.stderr)
            return False
        left = names([member for member in self.gang.members if member.is_ready])
        _warn(f"{end.why}; restarting from the newest checkpoint on {left or 'the hosts that come back'}")
        return True

    def _finished(self, members: Sequence[Member]) -> int:
        lead, others = members[0], members[1:]
        if not lead.lost:
            self.gang.ask([lead], "report", lambda _: {"run": str(self.training.run)})
            self.gang.pump(0.3)  # what it printed
        say(f"the run directory is on {names(members)}" if others else f"the run directory is on {lead.name}")
        return 0

    def _dry_run_done(self, members: Sequence[Member], end: RoundEnd) -> int:
        """Keep what is compared, and leave nothing on the hosts."""
        request = {"run": str(self.training.run)}
        self.outcome = start.must(self.gang, members[:1], "outcome", lambda _: request)[members[0].index]
        traces = {name: text for reply in end.replies.values() for name, text in reply["traces"].items()}
        self.outcome["traces"] = {int(name.removeprefix("trace-")): text for name, text in traces.items()}
        start.must(self.gang, members, "discard", lambda _: request)
        return 0

    def _stopped(self, by: signal.Signals, step: int) -> int:
        saved = f"saved after step {step}" if step else "nothing was saved yet"
        again = self.training.again(self.gang.members)
        say(f"stopped by {by.name}; {saved}; go on with: {again}", file=sys.stderr)
        return INTERRUPTED if by is signal.SIGINT else STOPPED


def _warn(sentence: str) -> None:
    with suppress(OSError):
        say(f"warning: {sentence}", file=sys.stderr)


def train_on_hosts(wanted: Wanted, hosts: Sequence[Host], way: Way) -> int:
    """Train on several hosts and print how it went.

    Returns:
        The exit code: 0, 85 when it was asked to stop and saved, 130 after Ctrl-C, 1 when it could not go on.

    Raises:
        UserError: whatever is the user's to fix; every host's problems at once.
    """
    with Requests() as requests:
        return Coordinator(wanted, hosts, way, requests).train()
