"""Train on several hosts: begin there, run rounds of ranks, and go on with whoever answers when one is lost.

A round is one start of all ranks. It ends when the training does, when a rank or a host is lost, or when it
is asked to, so that a host that has come back may join. Every round goes on from the newest checkpoint.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rankless.errors import INTERRUPTED, STOPPED, TaskError, UserError, counted, escaped
from rankless.launch.agent import HOPELESS, culprit
from rankless.launch.hosts import start
from rankless.launch.hosts.gang import Gang, Member, Way, way_over
from rankless.launch.hosts.names import Host
from rankless.launch.hosts.start import names
from rankless.launch.hosts.training import Training
from rankless.launch.requests import Requests
from rankless.printing import say
from rankless.recipe.schema import Recipe

_GRACE = 600.0  # seconds for the step under way and its checkpoint; a second signal ends it at once
_RETRY = 5.0  # seconds between two attempts to reach a host that was lost
_WAIT = 600.0  # seconds for hosts to come back when there are fewer than wanted

Replies = Mapping[int, Mapping[str, Any]]


class Hurried(BaseException):
    """Asked to stop before there is anything to save, or a second time."""


class Coordinator:
    """One training on several hosts.

    Args:
        training: what was asked for.
        hosts: where.
        least: with how many hosts the training goes on when others are lost.
        way: how hosts are reached.
        requests: signals that this process gets.
    """

    def __init__(
        self, training: Training, hosts: Sequence[Host], least: int, way: Way, requests: Requests
    ) -> None:
        self.training, self.least, self.requests = training, least, requests
        self.gang = Gang(hosts, way, self._urgent)
        self.token = uuid.uuid4().hex
        self.begun: set[int] = set()  # indices of hosts whose run directory is locked
        self.has_started = False
        self.reached = self.stuck = self.number = 0

    def train(self) -> int:
        """Train to the end; the exit code.

        Raises:
            UserError: whatever is the user's to fix.
        """
        grace = 3.0
        try:
            self._start()
            return self._rounds()
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

    def _start(self) -> None:
        members = self.gang.members
        start.connect(self.gang)
        for text in start.compare(self.gang, self.training, members):
            _warn(text)
        self.training = start.prepare(self.gang, self.training)
        self.training.shares(members)
        for member in members:  # one after another: they may share a directory
            self._begin(member, resume=self.training.resume)
        start.find_addresses(self.gang, members)
        self.reached = max(member.facts["step"] or 0 for member in members)
        self.has_started = True

    def _begin(self, member: Member, *, resume: bool) -> None:
        start.begin(self.gang, self.training, member, self.token, resume=resume)
        self.begun.add(member.index)

    def _rounds(self) -> int:
        while members := self._present():
            self._revive(members)
            replies, regrouping = self._round(members)
            notes = [note for reply in replies.values() for note in reply.get("notes", ())]
            _raise_problems(replies, notes)
            if any(note.get("finished") for note in notes):
                return self._finished(members)
            step = max([reply.get("step", 0) for reply in replies.values()], default=0)
            if (by := self.requests.first or _stopped_by(replies, notes)) and not regrouping:
                return self._stopped(by, step)
            if not regrouping and not self._judge(members, replies, step):
                return 1
        return self._stopped(self.requests.first, self.reached) if self.requests.first else 1

    def _present(self) -> list[Member]:
        """The hosts that answer; waits where there are too few. Empty when that took too long."""
        until, reported = time.monotonic() + _WAIT, False
        while self.requests.first is None:
            members = [member for member in self.gang.members if member.is_ready]
            if len(members) >= self.least:
                return members
            few = f"{counted(len(members), 'host')} left of {len(self.gang.members)}"
            if time.monotonic() > until:
                again = self.training.again(self.gang.members)
                say(
                    f"error: {few}, and --min-hosts is {self.least}; go on later with: {again}",
                    file=sys.stderr,
                )
                break
            if not reported:
                _warn(f"{few}, waiting for at least {self.least}")
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

    def _round(self, members: list[Member]) -> tuple[Replies, bool]:
        """Run the ranks once.

        Returns:
            The replies by host, and whether the round was ended only so that a host may join.
        """
        if not members or members[0].lost:
            return {}, False
        lead, counts = members[0], self.training.shares(members)
        self.gang.speaker = lead
        self.number += 1
        opened = self.gang.ask([lead], "open_store", lambda _: {"address": lead.own}).get(lead.index, {})
        if "port" not in opened:
            self._give_up(lead, "; ".join(opened.get("problems", ["it went before the ranks began"])))
            return {}, False
        first, size = 0, sum(counts.values())
        meeting = {"address": lead.own, "port": opened["port"], "size": size, "number": self.number}
        for member in members:
            here = {"ranks": counts[member.index], "first": first, "own": member.own}
            self.gang.tell(member, "round", job=asdict(self.training.job(member)), **here, **meeting)
            first += counts[member.index]
        return self._watch(members)

    def _watch(self, members: list[Member]) -> tuple[Replies, bool]:
        """Wait until the round has ended on every host; pass on what is asked and what happens."""
        asked = abandoned = regrouping = False
        until = float("inf")
        while any(not member.replies and not member.lost for member in members):
            self.gang.pump(0.1)
            if self.requests.first is not None and not asked:
                asked, until = True, time.monotonic() + _GRACE
                self._tell_round(members, "request", int(self.requests.first))
            failed = any(m.lost or (m.replies and _is_failed(m.replies[0])) for m in members)
            if failed and not abandoned:
                abandoned = True
                self._tell_round([member for member in members if not member.replies], "abandon")
            if not (asked or failed or regrouping) and self._call_back():
                regrouping = True
                self._tell_round(members, "request", int(signal.SIGTERM))
            if time.monotonic() > until:
                raise Hurried
        for member in members:
            if member.lost:
                _warn(f"{member.name} is lost: {member.lost}")
                self._forget(member)
        return {m.index: m.replies.popleft() for m in members if m.replies}, regrouping and not abandoned

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

    def _judge(self, members: Sequence[Member], replies: Replies, step: int) -> bool:
        """Report why the round ended; whether there is hope."""
        self.stuck = 0 if step > self.reached else self.stuck + 1
        self.reached = max(self.reached, step)
        codes = {
            int(rank): code for reply in replies.values() for rank, code in reply.get("codes", {}).items()
        }
        causes: dict[str, str] = {}
        for reply in replies.values():
            causes |= reply.get("causes", {})
        lost = [member for member in members if member.lost]
        blamed = str(culprit(codes)) if codes else ""
        why = f"lost {names(lost)}" if lost else causes.get(blamed, "the ranks ended")
        if self.stuck > HOPELESS:
            _warn(f"{why}; {HOPELESS} restarts did not get a checkpoint further, giving up")
            for reply in replies.values():
                for line in reply.get("tracebacks", {}).get(blamed, ()):
                    print(escaped(line), file=sys.stderr)
            look = f"look at {self.training.run}/logs on the hosts"
            again = self.training.again(self.gang.members)
            say(f"error: the ranks could not go on; {look}, then: {again}", file=sys.stderr)
            return False
        left = names([member for member in self.gang.members if member.is_ready])
        _warn(f"{why}; restarting from the newest checkpoint on {left or 'the hosts that come back'}")
        return True

    def _finished(self, members: Sequence[Member]) -> int:
        lead, others = members[0], members[1:]
        if not lead.lost:
            self.gang.ask([lead], "report", lambda _: {"run": str(self.training.run)})
            self.gang.pump(0.3)  # what it printed
        say(f"the run directory is on {names(members)}" if others else f"the run directory is on {lead.name}")
        return 0

    def _stopped(self, by: signal.Signals, step: int) -> int:
        saved = f"saved after step {step}" if step else "nothing was saved yet"
        again = self.training.again(self.gang.members)
        say(f"stopped by {by.name}; {saved}; go on with: {again}", file=sys.stderr)
        return INTERRUPTED if by is signal.SIGINT else STOPPED


def _is_failed(reply: Mapping[str, Any]) -> bool:
    return bool(reply.get("codes") or reply.get("problems"))


def _stopped_by(replies: Replies, notes: Sequence[Mapping[str, Any]]) -> signal.Signals | None:
    """The signal that somebody sent to a host or to a rank."""
    names_of_signals = [reply["signal"] for reply in replies.values() if reply.get("signal")]
    numbers = [note["signal"] for note in notes if note.get("signal")]
    if names_of_signals:
        return signal.Signals[names_of_signals[0]]
    return signal.Signals(numbers[0]) if numbers else None


def _raise_problems(replies: Replies, notes: Sequence[Mapping[str, Any]]) -> None:
    """Raise what ranks, or hosts, reported as the user's to fix."""
    failed = [note for note in notes if note.get("problems")]
    for note in failed:
        if note.get("once"):
            raise (TaskError if note["exit"] == TaskError.exit_code else UserError)(note["problems"])
    found = [sentence for note in failed for sentence in note["problems"]]
    found += [sentence for reply in replies.values() for sentence in reply.get("problems", ())]
    if found:
        raise UserError(dict.fromkeys(found))


def _warn(sentence: str) -> None:
    with suppress(OSError):
        say(f"warning: {sentence}", file=sys.stderr)


def train_on_hosts(
    recipe: Recipe,
    run: Path,
    hosts: Sequence[Host],
    *,
    devices: int | None = None,
    resume: bool = False,
    sinks: Sequence[str] = (),
    least: int = 1,
    ssh: str = "ssh",
    python: str | None = None,
) -> int:
    """Train on several hosts and print how it went.

    Args:
        recipe: ``precision: auto`` is resolved on a host.
        run: the run directory on every host: absolute, or below this folder where a host has it, otherwise
            below its home directory.
        hosts: reached over SSH, with the user's configuration and keys.
        devices: how many each host uses that names no number; None is all of its GPUs, or a rank per core.
        resume: go on in ``run``, from the newest checkpoint that any of the hosts holds.
        sinks: names of sinks of your own, which live in the process of rank 0.
        least: with how many hosts the training goes on when others are lost.
        ssh: the command, with options where needed.
        python: the interpreter with rankless on the hosts; None is this one's path.

    Returns:
        The exit code: 0, 85 when it was asked to stop and saved, 130 after Ctrl-C, 1 when it could not go on.

    Raises:
        UserError: whatever is the user's to fix; every host's problems at once.
    """
    if not 1 <= least <= len(hosts):
        raise UserError(f"--min-hosts is {least}: expected 1 to {len(hosts)}, the number of --hosts")
    env = {}
    if sys.stdout.isatty():
        width = os.get_terminal_size(1)
        env = {"FORCE_COLOR": "1", "COLUMNS": str(width.columns), "LINES": str(width.lines)}
    launched = {"started": datetime.now(UTC).isoformat(timespec="seconds"), "command": shlex.join(sys.argv)}
    training = Training(recipe, run, devices, resume, sinks, launched)
    with Requests() as requests:
        return Coordinator(training, hosts, least, way_over(ssh, python, env), requests).train()
