"""The hosts of a training run, with their connections, commands and replies."""

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
from rankless.launch.hosts.channel import MISSED, SILENCE, Access, Channel, Events
from rankless.launch.hosts.messages import Answer, Command, Event, Held, Sign
from rankless.launch.hosts.names import Host
from rankless.launch.rounds import how_it_ended
from rankless.messages import Lines

_CONNECT = 60.0  # seconds for a connection and the supervisor's first event
_START = 300.0  # seconds for the imports of a host's process, which may read from a slow network disk
_POLL = 0.1
_ASLEEP = 5.0  # seconds between two checks above which this process must have been stopped
_LINES = 12  # number of the last lines of output to keep
_LONGEST = 1 << 16  # bytes per line; a longer line is shown in parts
_EVENTS = 1000  # maximum number of events in the queue
_MODULE = ("-P", "-m", "rankless.launch.hosts.host")


@dataclass(eq=False)
class Member:
    """One host of a training run and its process."""

    host: Host
    index: int  # in the user's list
    channel: Channel | None = None
    has_connected: bool = False  # whether the supervisor responds
    is_ready: bool = False  # whether the process accepts commands
    lost: str = ""  # why the host cannot be used
    facts: dict[str, Any] = field(default_factory=dict)
    holds: Held = field(default_factory=Held)
    left_out: list[int] = field(default_factory=list)  # devices that ranks no longer use
    replies: deque[Any] = field(default_factory=deque)  # to the last command
    ports: dict[str, int] = field(default_factory=dict)  # by address
    own: str = ""  # the address that the other hosts use
    order: int = 0  # number of the last command
    awaited: type[Answer] = Answer  # type of the reply to it
    doing: str = ""  # its name
    began_at: float = 0.0
    answered: float = 0.0  # last time at which the process was known to work
    lines: dict[str, Lines] = field(default_factory=dict)
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES))

    @property
    def name(self) -> str:
        return self.host.name


A = TypeVar("A", bound=Answer)
Commands = Command[A] | Callable[["Member"], Command[A]]  # a command for all hosts, or for each host


class HostPool:
    """All hosts of a training run; ``urgent`` is called while waiting, and can raise an exception."""

    def __init__(
        self, hosts: Sequence[Host], access: Access, urgent: Callable[[], None] = lambda: None
    ) -> None:
        self.access, self.urgent = access, urgent
        self.channel_of: Callable[[Host, Sequence[str], str, Events], Channel] = Channel
        self.members = [Member(host, index) for index, host in enumerate(hosts)]
        self.speaker: Member | None = None  # the host of rank 0, whose standard output is shown unchanged
        self.missing = False  # whether ranks have lost peers, so that a silent host counts as lost sooner
        self._checked = time.monotonic()
        self._hangs = patience() or STOPPED
        self._events: Events = queue.Queue(_EVENTS)

    def connect(self, members: Iterable[Member]) -> None:
        """Start connecting to hosts. Each host then becomes ready or lost."""
        for member in members:
            member.lost, member.is_ready, member.has_connected = "", False, False
            member.replies.clear()
            member.said.clear()
            member.lines.clear()
            member.began_at = time.monotonic()
            try:
                member.channel = self.channel_of(
                    member.host, self.access.ssh, self.access.helper, self._events
                )
            except OSError as error:
                member.channel, member.lost = None, f"{self.access.ssh[0]} cannot be started ({error})"
                continue
            if code := self.access.package:
                member.channel.send("unpack", folder=code.folder, data=code.data)
            argv = [self.access.python, *_MODULE]
            member.channel.start(argv, self.access.env, self.access.cwd)

    def wait_ready(self) -> None:
        while any(member.channel and not member.is_ready and not member.lost for member in self.members):
            self.pump(_POLL)

    def ask(
        self, members: Sequence[Member], command: Commands[A], seconds: float = float("inf")
    ) -> dict[int, A]:
        """Send a command to hosts that are ready, wait for the replies, and return them by host index.

        Hosts that have not replied after ``seconds`` count as lost and are missing from the result.
        """
        for member in members:
            self.order(member, command(member) if callable(command) else command)
        until = time.monotonic() + seconds
        while waiting := [member for member in members if not member.replies and not member.lost]:
            self.pump(_POLL)
            if time.monotonic() > until:
                for member in [member for member in waiting if not member.replies]:
                    self.lose(member, f"the command '{member.doing}' did not finish within {seconds:g} s")
        return {member.index: member.replies.popleft() for member in members if member.replies}

    def order(self, member: Member, command: Command[Any]) -> None:
        """Send a command without waiting for the reply, and drop replies to earlier commands."""
        member.order += 1
        member.awaited, member.doing = command.answer_type(), str(command.__struct_config__.tag)
        member.replies.clear()
        self.send(member, msgspec.structs.replace(command, reply_to=member.order))

    def send(self, member: Member, command: Command[Any]) -> None:
        """Send a command that needs no reply."""
        if member.channel is not None and not member.lost:
            member.channel.command(command)

    def pump(self, seconds: float) -> None:
        """Handle events, waiting up to ``seconds`` for the first one, and give up on silent hosts."""
        self.urgent()
        wait = seconds
        for _ in range(_EVENTS):  # a host that prints endlessly must not block this loop
            try:
                channel, event = self._events.get(timeout=wait) if wait else self._events.get_nowait()
            except queue.Empty:
                break
            for member in self.members:
                if member.channel is channel:
                    self._take(member, event)
            wait = 0.0
        self._drop_silent()

    def close(self, grace: float = 0.0) -> None:
        """End the processes on all hosts within ``grace`` seconds, and close the connections."""
        self.urgent = lambda: None
        for member in self.members:
            if member.channel is not None:
                member.channel.close(grace)
        until = time.monotonic() + grace + 6
        while any(member.channel for member in self.members) and time.monotonic() < until:
            self.pump(_POLL)  # prints the last output
        for member in self.members:
            self.lose(member, "the end")

    def lose(self, member: Member, why: str) -> None:
        """Give up on a host; its supervisor ends all processes there when the lease expires."""
        member.lost, member.is_ready = why, False
        if member.channel is not None:
            member.channel.drop()
            member.channel = None

    def _drop_silent(self) -> None:
        now, silence = time.monotonic(), MISSED if self.missing else SILENCE
        asleep, self._checked = now - self._checked > _ASLEEP, now
        for member in self.members:
            if member.channel is None or member.lost:
                continue
            if asleep:
                member.channel.heard = member.answered = now
            began = now - member.began_at
            if member.has_connected and now - member.channel.heard > silence:
                self.lose(member, f"no answer for {silence:.0f} s")
            elif member.is_ready and now - member.answered > self._hangs:
                self.lose(member, f"its process did not respond for {self._hangs:.0f} s")
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
        sign = msgspec.json.decode(text, type=Sign)
        member.answered = time.monotonic() - (sign.beat or 0)
        if sign.ready:
            member.is_ready = True
        elif sign.reply_to and sign.reply_to == member.order:
            member.replies.append(msgspec.json.decode(text, type=member.awaited))

    def _show(self, member: Member, stream: str, data: bytes) -> None:
        """Print the output of rank 0 unchanged, and all other output line by line with the host's name."""
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
