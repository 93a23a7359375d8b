"""Coordinate training on several hosts: run rounds of ranks, and continue without lost hosts.

A round is one start of all ranks. It ends when the training ends, when a rank or a host is lost, or when a
returning host can join. Every round continues from the newest checkpoint.
"""

from __future__ import annotations

import shlex
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from rankless.errors import INTERRUPTED, STOPPED, UserError, counted
from rankless.launch.hosts import messages, preflight
from rankless.launch.hosts.channel import Access
from rankless.launch.hosts.host_pool import HostPool, Member
from rankless.launch.hosts.names import Host
from rankless.launch.hosts.preflight import Training, names
from rankless.launch.job import Place, Wanted
from rankless.launch.opening import report_nothing_left, report_stopped
from rankless.launch.requests import Requests
from rankless.launch.rounds import GRACE, Death, Progress, RoundEnd, supervise, where_from
from rankless.launch.sharing import too_few
from rankless.printing import say, warn

_WAIT = 600.0  # seconds for hosts to come back when there are too few
_SHORT = 60.0  # seconds for quick commands
_LAST = 10.0  # seconds for hosts to clean up
_RETRY = 5.0  # seconds between two attempts to reach a lost host
_LONGEST = 300.0  # maximum seconds between two attempts to readmit a host that can be reached but not used
_REPORTED = 4  # refusals for one reason before it is reported, because the host's run may still be ending


class StopNow(BaseException):
    """Raised after a request to stop if there is nothing to save, or after a second request."""


class Coordinator:
    """The coordinator of a training run on several hosts."""

    training: Training
    progress: Progress

    def __init__(self, wanted: Wanted, hosts: Sequence[Host], access: Access, requests: Requests) -> None:
        self.wanted, self.requests = wanted, requests
        self.pool = HostPool(hosts, access, self._urgent)
        self.token, self.grace = uuid.uuid4().hex, GRACE
        self.hosts = Membership(self.pool, warn)
        self.has_started = False
        self.outcome = messages.DryRunOutcome()  # of a dry run, as are the traces
        self.traces = list[str]()
        self.members: list[Member] = []  # hosts of the last round, starting with the host of rank 0
        self.deaths: list[Death] = []  # deaths that the first host of the next round will record
        self.number = 0
        self.answered = True  # whether a host has reported the outcome of the last round
        self.unheard = False  # whether the progress of the last round is unknown
        self.waiting_since: float | None = None

    def train(self) -> int:
        """Train until the end, and return the exit code."""
        grace = 3.0
        try:
            return self._supervised() if self._start() else 0
        except UserError:
            self._leave(messages.Withdraw())
            raise
        except StopNow:
            grace = 0.0
            by = self.requests.first or signal.SIGTERM
            how = "immediately" if self.has_started else "before the training began"
            say(f"stopped by {by.name} {how}", file=sys.stderr)
            if not self.has_started:
                self._leave(messages.Withdraw())
            return INTERRUPTED if by is signal.SIGINT else STOPPED
        finally:
            if self.wanted.dry_run_steps and self.has_started:
                self._leave(messages.Discard())
            self.pool.close(grace)
            if sys.stdout.isatty():
                print("\x1b[?25h", end="", flush=True)  # a killed rank may have left the cursor hidden

    def _leave(self, command: messages.Command[messages.Answer]) -> None:
        self.pool.urgent = lambda: None
        holders = [member for member in self.pool.members if member.index in self.hosts.joined]
        self._send_to_round(holders, messages.Abandon(of=self.number))
        self.pool.ask(holders, command, _LAST)

    def _urgent(self) -> None:
        if self.requests.hurry or (self.requests.first and not self.has_started):
            raise StopNow

    def _start(self) -> bool:
        """Start the run on every host; return False if the run to resume is already finished."""
        wanted, members = self.wanted, self.pool.members
        if not wanted.dry_run_steps:
            say(f"connecting to {names(members)}", file=sys.stdout)
        preflight.connect(self.pool)
        training, newest = preflight.training_of(self.pool, wanted)
        for text in preflight.compare(self.pool, training, members):
            warn(text)
        self.training, finished = preflight.prepare(self.pool, training, newest)
        if finished:
            report_nothing_left(training.run, finished, self.training.recipe.epochs, self._again())
            return False
        wished, ranks = (sum(f(members).values()) for f in (self.training.devices_of, self.training.shares))
        if ranks < wished:
            say(too_few(ranks, wished, "devices"), file=sys.stderr)
        for member in members:  # one after another: they may share a directory
            command = self.training.begin_command(member, self.token, resume=wanted.resume)
            preflight.must(self.pool, [member], command)
            self.hosts.joined.add(member.index)
        preflight.must_meet(self.pool, members)
        self.progress = Progress(newest.holds.step or 0)
        self.has_started = True
        return True

    def _supervised(self) -> int:
        end = supervise(self)
        if end is None:
            return self._stopped(self.requests.first) if self.requests.first else 1
        if end.error:
            raise end.error
        if end.is_finished:
            if not self.wanted.dry_run_steps:
                return self._finished()
            command, lead = messages.Outcome(run=str(self.training.run)), self.members[0]
            self.outcome = preflight.must(self.pool, [lead], command)[lead.index]
            self.traces = [text for _, text in sorted(end.traces.items())]
            return 0
        if by := end.stopped_by:
            return self._stopped(signal.Signals(by), end)
        logs = f"{self.training.run}/logs"
        say(
            f"error: the ranks could not continue; see {logs} on the hosts, then run: {self._again()}",
            file=sys.stderr,
        )
        return 1

    def rounds(self) -> Iterator[RoundEnd]:
        while members := self._present():
            members = self._meet(members)
            if len(members) < self.wanted.least:
                continue
            self.waiting_since = None
            if self.unheard:  # hosts that were lost now report what they had saved
                held = self.pool.ask(members, messages.Holds(run=str(self.training.run)), _SHORT)
                self._count(max([reply.step or 0 for reply in held.values()], default=0))
                self.unheard = False
            self.members = members
            yield self._round(members)

    def record(self, end: RoundEnd) -> None:
        self.unheard = not self.answered
        if self.answered:
            self._count(end.step)
        self.deaths += end.deaths

    def resumes(self, end: RoundEnd) -> str:
        left = names([member for member in self.pool.members if member.index in self.hosts.joined])
        saved = None if end.lost and not self.progress.step else self.progress.step
        return f"{where_from(saved)} on {left or 'the hosts that come back'}"

    def _present(self) -> list[Member]:
        """Return the hosts that have joined the run, or none if too few join within a time limit."""
        while self.requests.first is None:
            self._report_losses()
            members = [member for member in self.pool.members if member.index in self.hosts.joined]
            if len(members) >= self.wanted.least:
                return members
            few = f"only {len(members)} of {counted(len(self.pool.members), 'host')} left"
            if self.waiting_since is None:
                self.waiting_since = time.monotonic()
                warn(f"{few}; waiting for at least {self.wanted.least}")
            if time.monotonic() > self.waiting_since + _WAIT:
                say(
                    f"error: {few}, but --min-hosts is {self.wanted.least}; continue later with: "
                    f"{self._again()}",
                    file=sys.stderr,
                )
                break
            self.hosts.readmit(self.training, self.token)
            self.pool.pump(0.5)
        return []

    def _report_losses(self) -> None:
        for member in self.hosts.lost():
            text = f"lost {member.name} ({member.lost})"
            warn(text)
            self.deaths.append(Death(None, 0, text))

    def _meet(self, members: list[Member]) -> list[Member]:
        while members := [member for member in members if not member.lost]:
            missed = preflight.find_addresses(self.pool, members)
            if not missed and not any(member.lost for member in members):
                break
            if missed:
                self.hosts.exclude(
                    preflight.least_connected(self.pool, missed), "the other hosts cannot reach it"
                )
        self._report_losses()
        return members

    def _round(self, members: list[Member]) -> RoundEnd:
        lead, counts = members[0], self.training.shares(members)
        self.pool.speaker = lead
        self.number += 1
        opened = self.pool.ask([lead], messages.OpenStore(address=lead.own), _SHORT).get(lead.index)
        if opened is None or opened.problems:
            self.hosts.exclude(lead, "; ".join(opened.problems if opened else [lead.lost]))
            self._report_losses()
            self.answered = False
            return RoundEnd(lost=[lead.name])
        first, size = 0, sum(counts.values())
        for member in members:
            command = messages.Round(
                number=self.number,
                job=self.training.job(member),
                ranks=counts[member.index],
                place=Place(first, size, lead.own, opened.value),
                own=member.own,
                deaths=self.deaths,
                left_out=member.left_out,
            )
            self.deaths = []
            self.pool.order(member, command)
            first += counts[member.index]
        return self._watch(members)

    def _watch(self, members: list[Member]) -> RoundEnd:
        asked = abandoned = regrouping = False
        until = float("inf")
        while waiting := [member for member in members if not member.replies and not member.lost]:
            self.pool.pump(0.1)
            self._report_losses()
            if self.requests.first is not None and not asked:
                asked, until = True, time.monotonic() + self.grace
                if (
                    not regrouping
                ):  # otherwise, ranks are already saving, and a second request would kill them
                    self._send_to_round(members, self._request(self.requests.first))
            failed = any(
                m.lost or (m.replies and (m.replies[0].end.failed or m.replies[0].problems)) for m in members
            )
            self.pool.missing = failed
            if failed and not abandoned:
                abandoned, until = True, min(until, time.monotonic() + self.grace)
                self._send_to_round(
                    [member for member in members if not member.replies], messages.Abandon(of=self.number)
                )
            if not (asked or failed or regrouping) and self.hosts.readmit(self.training, self.token):
                regrouping, until = True, time.monotonic() + self.grace
                self._send_to_round(members, self._request(signal.SIGTERM))
            if time.monotonic() > until:
                if asked:
                    raise StopNow
                for member in waiting:
                    self.pool.lose(member, f"its ranks did not end within {self.grace:.0f} s")
        self.pool.missing = False
        self._report_losses()
        replies = {member.index: member.replies.popleft() for member in members if member.replies}
        for member in members:
            if member.index in replies and replies[member.index].left_out:
                member.left_out = replies[member.index].left_out
                if not self.training.devices_of([member])[member.index]:
                    self.hosts.forget(member, "all its devices have computed wrong results")
        lost = [member for member in members if member.lost] + self._exclude_unable(members, replies)
        self.answered = bool(replies)
        ends = [reply.end for reply in replies.values()]
        by = self.requests.first
        end = RoundEnd.merged(ends, [member.name for member in lost], regrouping=regrouping and not by)
        end.signal = int(by or end.signal)
        return end

    def _exclude_unable(
        self, members: list[Member], replies: Mapping[int, messages.RoundEnded]
    ) -> list[Member]:
        """Give up on hosts that could not run their ranks; raise a UserError if too few hosts remain."""
        problems = {index: reply.problems for index, reply in replies.items() if reply.problems}
        unable = [member for member in members if member.index in problems]
        if unable and len([m for m in members if not m.lost]) - len(unable) < self.wanted.least:
            raise UserError(f"{member.name}: {text}" for member in unable for text in problems[member.index])
        for member in unable:
            self.hosts.exclude(member, "; ".join(problems[member.index]))
        self._report_losses()
        return unable

    def _request(self, number: signal.Signals) -> messages.Request:
        return messages.Request(of=self.number, number=int(number))

    def _send_to_round(self, members: Sequence[Member], command: messages.Request | messages.Abandon) -> None:
        for member in members:
            self.pool.send(member, command)

    def _count(self, step: int) -> None:
        if self.progress.count(step):
            self.hosts.has_trained()

    def _finished(self) -> int:
        members, lead = self.members, self.members[0]
        if not lead.lost:
            replies = self.pool.ask([lead], messages.Report(run=str(self.training.run)), _SHORT)
            for reply in replies.values():
                for line in (reply.value or "").splitlines():
                    say(line)
        behind = preflight.behind(self.pool, members, str(self.training.run))
        say(f"the run directory is on {names([member for member in members if member.name not in behind])}")
        for name, steps in behind.items():
            warn(f"{name} has only the first {steps} steps; copy the run directory from another host")
        return 0

    def _stopped(self, by: signal.Signals, end: RoundEnd | None = None) -> int:
        if self.wanted.dry_run_steps:
            return INTERRUPTED if by is signal.SIGINT else STOPPED
        step = max(self.progress.step, end.step if end else 0)
        known = self.answered and bool(step or not end.lost) if end else not self.unheard
        return report_stopped(by, step, self._again(), known=known)

    def _again(self) -> str:
        hosts = ",".join(str(member.host) for member in self.pool.members)
        words = ["rankless", "train", "--resume", "--run", str(self.training.run), "--hosts", hosts]
        least = ["--min-hosts", str(self.wanted.least)] if self.wanted.least > 1 else []
        return shlex.join([*words, *least, *self.pool.access.options])


class Membership:
    """The hosts that have joined the run, and the lost hosts that may return."""

    def __init__(self, pool: HostPool, warn: Callable[[str], None]) -> None:
        self.pool, self.warn, self.retry = pool, warn, _RETRY
        self.joined: set[int] = set()  # indices of the hosts whose run directory is locked
        self._sent: dict[int, str] = {}  # last command to a returning host
        self._refused: Counter[int] = Counter()
        self._reasons: Counter[tuple[int, str]] = Counter()
        self._retry_at: dict[int, float] = {}

    def lost(self) -> list[Member]:
        """Return the hosts that were lost since the last call."""
        found = [member for member in self.pool.members if member.lost and member.index in self.joined]
        for member in found:  # the lock is gone with the host's process
            self.joined.discard(member.index)
            self._wait(member)
        return found

    def exclude(self, member: Member, why: str) -> None:
        """Give up on a host that cannot be used, and wait longer before each attempt to readmit it."""
        self._refused[member.index] += 1
        self._reasons[member.index, why] += 1
        if member.index not in self.joined and self._reasons[member.index, why] == _REPORTED:
            self.warn(f"{member.name} cannot join: {why}")
        if not member.lost:
            self.pool.lose(member, why)
        self._wait(member)

    def forget(self, member: Member, why: str) -> None:
        """Give up on a host permanently."""
        self.joined.discard(member.index)
        self.pool.lose(member, why)
        self._retry_at[member.index] = float("inf")

    def has_trained(self) -> None:
        """Reset the refusal counts of the joined hosts."""
        for index in self.joined:
            del self._refused[index]

    def readmit(self, training: Training, token: str) -> bool:
        """Take the next step towards reconnecting lost hosts, and return whether one has joined."""
        now, found = time.monotonic(), False
        for member in self.pool.members:
            if member.index in self.joined:
                continue
            if member.lost:
                if member.index in self._sent:  # the host was lost again
                    self._wait(member)
                elif now > self._retry_at.get(member.index, 0.0):
                    self._wait(member)
                    self.pool.connect([member])
            elif member.is_ready:
                found |= self._ask(member, training, token)
        return found

    def _ask(self, member: Member, training: Training, token: str) -> bool:
        """Send the next command to a returning host; return whether the host has joined."""
        sent = self._sent.get(member.index)
        if sent is None:
            self._sent[member.index] = "facts"
            self.pool.order(member, messages.Facts(recipe=training.json(member), run=str(training.run)))
            return False
        if not member.replies:
            return False
        reply = member.replies.popleft()
        problems = list(reply.problems)
        if sent == "facts" and not problems:
            member.facts = reply.value
            there = [m for m in self.pool.members if m.index in self.joined and m.facts]
            problems = preflight.problems([*there, member])
        if problems:
            self.exclude(member, "; ".join(problems))
        elif sent == "facts":
            self._sent[member.index] = "begin"
            self.pool.order(member, training.begin_command(member, token, resume=True))
        else:
            del self._sent[member.index]
            self.joined.add(member.index)
            self.warn(f"{member.name} is back")
            return True
        return False

    def _wait(self, member: Member) -> None:
        self._sent.pop(member.index, None)
        member.facts = {}
        seconds = min(self.retry * 2 ** min(self._refused[member.index], 10), _LONGEST)
        self._retry_at[member.index] = time.monotonic() + seconds


def train_on_hosts(wanted: Wanted, hosts: Sequence[Host], access: Access) -> int:
    """Train on several hosts, print the outcome, and return the exit code."""
    with Requests() as requests:
        return Coordinator(wanted, hosts, access, requests).train()
