"""The hosts of a training: connected, asked, listened to, and given up when they are silent."""

from __future__ import annotations

import os
import queue
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from rankless.errors import escaped
from rankless.launch.hanging import STOPPED, patience
from rankless.launch.hosts.channel import MISSED, SILENCE, Channel, Events, Way
from rankless.launch.hosts.messages import Answer, Command, Event, Held, Sign
from rankless.launch.hosts.names import Host
from rankless.launch.supervisor import how_it_ended
from rankless.messages import Lines

_CONNECT = 60.0  # seconds for a connection and the supervisor's first word
_START = 300.0  # seconds for the imports of the process there, from a cold network disk, too
_POLL = 0.1
_ASLEEP = 5.0  # seconds between two looks: this process was stopped, and the others are not to blame
_LINES = 12  # of what a process said last
_LONGEST = 1 << 16  # bytes of a line that is waited for; a longer one is shown in parts
_EVENTS = 1000  # that wait to be looked at before what hosts print has to wait, too
_MODULE = ("-P", "-m", "rankless.launch.hosts.host")


@dataclass(eq=False)
class Member:
    """One host and its process.

    Attributes:
        host: which.
        index: its number among the hosts that were given.
        channel: to its supervisor; None without a connection.
        has_connected: its supervisor answers.
        is_ready: its process takes commands.
        lost: why it cannot be used; empty while it can.
        facts, holds: what it said about itself, and about the run there.
        replies: to the last command that has one.
        order, awaited, doing: the number of that command, the type of its reply, and its name.
        answered: when its process was last seen to be at work.
        ports, own: where it could be reached, and the address of it that the others use.
    """

    host: Host
    index: int
    channel: Channel | None = None
    has_connected: bool = False
    is_ready: bool = False
    lost: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    holds: Held = field(default_factory=Held)
    replies: deque[Any] = field(default_factory=deque)
    ports: dict[str, int] = field(default_factory=dict)
    own: str = ""
    order: int = 0
    awaited: type[Answer] = Answer
    doing: str = ""
    began_at: float = 0.0
    answered: float = 0.0
    lines: dict[str, Lines] = field(default_factory=dict)
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES))

    @property
    def name(self) -> str:
        """As it was given."""
        return self.host.name


A = TypeVar("A", bound=Answer)
Asked = Command[A] | Callable[["Member"], Command[A]]
"""A command: the same for all hosts, or what makes each one's."""


class HostPool:
    """All hosts of a training.

    Args:
        hosts: which.
        way: how they are reached.
        urgent: looked at while waiting; an exception that it raises ends the wait.

    Attributes:
        members: of all hosts, in their order.
        speaker: the host whose standard output is shown as it is: that of rank 0.
        missing: whether ranks miss others, so that a host that is silent has been lost.
    """

    def __init__(self, hosts: Sequence[Host], way: Way, urgent: Callable[[], None] = lambda: None) -> None:
        self.way, self.urgent = way, urgent
        self.members = [Member(host, index) for index, host in enumerate(hosts)]
        self.speaker: Member | None = None
        self.missing, self._looked = False, time.monotonic()
        self._hangs = patience() or STOPPED
        self._events: Events = queue.Queue(_EVENTS)

    def connect(self, members: Iterable[Member]) -> None:
        """Begin to connect; a member is ready, or lost, some seconds later."""
        for member in members:
            member.lost, member.is_ready, member.has_connected = "", False, False
            member.replies.clear()
            member.said.clear()
            member.lines.clear()
            member.began_at = time.monotonic()
            try:
                member.channel = Channel(member.host, self.way.ssh, self.way.helper, self._events)
            except OSError as error:
                member.channel, member.lost = None, f"{self.way.ssh[0]} cannot be started ({error})"
                continue
            if code := self.way.package:
                member.channel.send("unpack", folder=code.folder, data=code.data)
            argv = [self.way.python, *_MODULE]
            member.channel.start(argv, self.way.env, self.way.cwd)

    def wait_ready(self) -> None:
        """Wait until every member is ready or lost."""
        while any(member.channel and not member.is_ready and not member.lost for member in self.members):
            self.pump(_POLL)

    def ask(
        self, members: Sequence[Member], command: Asked[A], seconds: float = float("inf")
    ) -> dict[int, A]:
        """Ask members for something and wait for all replies.

        Args:
            members: ready ones.
            command: what.
            seconds: those that have not replied by then are lost.

        Returns:
            The replies by the members' indices; none of those that were lost meanwhile.
        """
        for member in members:
            self.order(member, command(member) if callable(command) else command)
        until = time.monotonic() + seconds
        while waiting := [member for member in members if not member.replies and not member.lost]:
            self.pump(_POLL)
            if time.monotonic() > until:
                for member in [member for member in waiting if not member.replies]:
                    self.lose(member, f"'{member.doing}' was not done within {seconds:g} s")
        return {member.index: member.replies.popleft() for member in members if member.replies}

    def order(self, member: Member, command: Command[Any]) -> None:
        """Send a command whose reply comes later; those to commands before are not awaited any more."""
        member.order += 1
        member.awaited, member.doing = command.answer_type(), str(command.__struct_config__.tag)
        member.replies.clear()
        self.send(member, msgspec.structs.replace(command, reply_to=member.order))

    def send(self, member: Member, command: Command[Any]) -> None:
        """Send what needs no reply."""
        if member.channel is not None and not member.lost:
            member.channel.command(command)

    def pump(self, seconds: float) -> None:
        """Take what has come, waiting for it for at most so long, and see who is silent."""
        self.urgent()
        wait = seconds
        for _ in range(_EVENTS):  # a host that prints without end must not keep this from anything else
            try:
                channel, event = self._events.get(timeout=wait) if wait else self._events.get_nowait()
            except queue.Empty:
                break
            for member in self.members:
                if member.channel is channel:
                    self._take(member, event)
            wait = 0.0
        self._see_who_is_silent()

    def close(self, grace: float = 0.0) -> None:
        """End what runs on all hosts, and the connections.

        Args:
            grace: seconds for the processes to end by themselves.
        """
        self.urgent = lambda: None
        for member in self.members:
            if member.channel is not None:
                member.channel.close(grace)
        until = time.monotonic() + grace + 6
        while any(member.channel for member in self.members) and time.monotonic() < until:
            self.pump(_POLL)  # what is printed last is shown, too
        for member in self.members:
            self.lose(member, "the end")

    def lose(self, member: Member, why: str) -> None:
        """Give a host up; its supervisor ends what runs there when it misses us."""
        member.lost, member.is_ready = why, False
        if member.channel is not None:
            member.channel.drop()
            member.channel = None

    def _see_who_is_silent(self) -> None:
        now, silence = time.monotonic(), MISSED if self.missing else SILENCE
        asleep, self._looked = now - self._looked > _ASLEEP, now
        for member in self.members:
            if member.channel is None or member.lost:
                continue
            if asleep:
                member.channel.heard = member.answered = now
            began = now - member.began_at
            if member.has_connected and now - member.channel.heard > silence:
                self.lose(member, f"no answer for {silence:.0f} s")
            elif member.is_ready and now - member.answered > self._hangs:
                self.lose(member, f"its process has hung for {self._hangs:.0f} s")
            elif not member.has_connected and began > _CONNECT:
                self.lose(member, "; ".join(member.said) or f"no answer for {_CONNECT:.0f} s")
            elif not member.is_ready and began > _START:
                self.lose(member, f"its process was not ready after {_START:.0f} s")

    def _take(self, member: Member, event: Event) -> None:
        if event.out or event.err:
            self._show(member, "out" if event.out else "err", event.out or event.err)
        elif event.event:
            for text in member.lines.setdefault("event", Lines()).feed(event.event):
                self._hear(member, text)
        elif event.hello is not None:
            member.has_connected = True
        elif event.failed:
            self.lose(member, f"{event.failed} there")
        elif event.ended is not None:
            said = "" if member.is_ready else "; ".join(member.said)
            self.lose(member, said or f"its process {how_it_ended(event.ended)}")
        elif event.lost is not None:
            self.lose(member, event.lost)

    def _hear(self, member: Member, text: bytes) -> None:
        """Take what a host's process says; what was asked before may be answered late."""
        sign = msgspec.json.decode(text, type=Sign)
        member.answered = time.monotonic() - (sign.beat or 0)
        if sign.ready:
            member.is_ready = True
        elif sign.reply_to and sign.reply_to == member.order:
            member.replies.append(msgspec.json.decode(text, type=member.awaited))

    def _show(self, member: Member, stream: str, data: bytes) -> None:
        """Print a host's output: rank 0's unchanged, all else line by line with the host's name."""
        if stream == "out" and member is self.speaker:
            with suppress(OSError):
                sys.stdout.flush()
                while data:
                    data = data[os.write(1, data) :]
            return
        lines = member.lines.setdefault(stream, Lines())
        whole = lines.feed(data)
        if len(lines.rest) >= _LONGEST:
            whole += lines.feed(b"\n")
        for line in whole:
            text = line.decode(errors="replace").rstrip()
            if not member.is_ready:
                member.said.append(text)
            elif text:
                file = sys.stdout if stream == "out" else sys.stderr
                with suppress(OSError):
                    print(f"[{member.name}] {escaped(text)}", file=file, flush=True)
