"""The hosts of a training: connected, asked, listened to, and given up when they are silent."""

from __future__ import annotations

import base64
import json
import os
import queue
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankless.errors import UserError, escaped
from rankless.launch.hosts.channel import SILENCE, Channel, Event
from rankless.launch.hosts.names import Host
from rankless.launch.hosts.package import Package, package

_START = 60.0  # seconds for a connection and the imports of the process there
_POLL = 0.1
_LINES = 12  # of what a process said last
_MODULE = ("-P", "-m", "rankless.launch.hosts.process")


@dataclass
class Member:
    """One host and its process.

    Attributes:
        host: which.
        index: its number among the hosts that were given.
        channel: to its supervisor; None without a connection.
        is_ready: its process takes commands.
        lost: why it cannot be used; empty while it can.
        facts, holds: what it said about itself, and about the run there.
        replies: to commands, in their order.
        ports, own: where it could be reached, and the address of it that the others use.
    """

    host: Host
    index: int
    channel: Channel | None = None
    is_ready: bool = False
    lost: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    holds: dict[str, Any] = field(default_factory=dict)
    replies: deque[dict[str, Any]] = field(default_factory=deque)
    ports: dict[str, int] = field(default_factory=dict)
    own: str = ""
    retry_at: float = 0.0
    began_at: float = 0.0
    lines: dict[str, bytes] = field(default_factory=dict)
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES))

    @property
    def name(self) -> str:
        """As it was given."""
        return self.host.name


@dataclass(frozen=True)
class Way:
    """How hosts are reached and what is started there.

    Attributes:
        ssh: the command.
        python: the interpreter of the ranks.
        helper: the interpreter of the supervisor, which needs no packages.
        env: variables for the process.
        cwd: its folder, where that exists; otherwise the home directory.
        package: the code that hosts are to run in place of their own; None leaves them theirs.
    """

    ssh: Sequence[str]
    python: str
    helper: str
    env: Mapping[str, str]
    cwd: str
    package: Package | None = None


def way_over(ssh: str, python: str | None, *, sync: bool = False) -> Way:
    """The way that the command line describes.

    Args:
        ssh: the command, with options where needed.
        python: the interpreter with rankless on the hosts; None is this one's path.
        sync: whether hosts run the code of this machine.

    Raises:
        UserError: no command.
    """
    env = {name: value for name, value in os.environ.items() if name.startswith("RANKLESS_")}
    if sys.stdout.isatty():  # rank 0 shows its bar through a pipe
        size = os.get_terminal_size(1)
        env |= {"FORCE_COLOR": "1", "COLUMNS": str(size.columns), "LINES": str(size.lines)}
    try:
        words = shlex.split(ssh)
    except ValueError as error:
        raise UserError(f"--ssh is '{ssh}': {error}; expected a command, as in 'ssh -p 2222'") from None
    if not words:
        raise UserError("--ssh is empty; expected a command, as in 'ssh -p 2222'")
    code = package() if sync else None
    if code:
        env["PYTHONPATH"] = f"~/{code.folder}"
    return Way(words, python or sys.executable, python or "python3", env, str(Path.cwd()), code)


class Gang:
    """All hosts of a training.

    Args:
        hosts: which.
        way: how they are reached.
        urgent: looked at while waiting; an exception that it raises ends the wait.

    Attributes:
        members: of all hosts, in their order.
        speaker: the host whose standard output is shown as it is: that of rank 0.
    """

    def __init__(self, hosts: Sequence[Host], way: Way, urgent: Callable[[], None] = lambda: None) -> None:
        self.way, self.urgent = way, urgent
        self.members = [Member(host, index) for index, host in enumerate(hosts)]
        self.speaker: Member | None = None
        self._events: queue.Queue[Event] = queue.Queue()

    def connect(self, members: Iterable[Member]) -> None:
        """Begin to connect; a member is ready, or lost, some seconds later."""
        for member in members:
            member.lost, member.is_ready = "", False
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
        self,
        members: Sequence[Member],
        do: str,
        each: Callable[[Member], Mapping[str, Any]] | None = None,
        seconds: float = float("inf"),
    ) -> dict[int, dict[str, Any]]:
        """Ask members for something and wait for all replies.

        Args:
            members: ready ones.
            do: the command.
            each: its arguments.
            seconds: those that have not replied by then are lost.

        Returns:
            The replies by the members' indices; none of those that were lost meanwhile.
        """
        for member in members:
            self.tell(member, do, **(each(member) if each else {}))
        until = time.monotonic() + seconds
        while waiting := [member for member in members if not member.replies and not member.lost]:
            self.pump(_POLL)
            if time.monotonic() > until:
                for member in [member for member in waiting if not member.replies]:
                    self.lose(member, f"'{do}' was not done within {seconds:g} s")
        return {member.index: member.replies.popleft() for member in members if member.replies}

    def tell(self, member: Member, do: str, **request: Any) -> None:
        """Send a command; its reply comes later."""
        if member.channel is not None and not member.lost:
            member.channel.command(do, **request)

    def pump(self, seconds: float) -> None:
        """Take what has come, waiting for it for at most so long, and see who is silent."""
        self.urgent()
        until = time.monotonic() + seconds
        wait = seconds
        while True:
            try:
                channel, event = self._events.get(timeout=max(wait, 0))
            except queue.Empty:
                break
            for member in self.members:
                if member.channel is channel:
                    self._take(member, event)
            wait = min(until - time.monotonic(), 0)  # what is there, and no more waiting
        self._see_who_is_silent()

    def close(self, grace: float = 0.0) -> None:
        """End what runs on all hosts, and the connections.

        Args:
            grace: seconds for the processes to end by themselves.
        """
        channels = [member.channel for member in self.members if member.channel is not None]
        for channel in channels:
            channel.close(grace)
        until = time.monotonic() + grace + 6
        for channel in channels:
            channel.wait(max(until - time.monotonic(), 0.1))

    def lose(self, member: Member, why: str) -> None:
        """Give a host up; its supervisor ends what runs there when it misses us."""
        member.lost, member.is_ready = why, False
        if member.channel is not None:
            member.channel.drop()
            member.channel = None

    def _see_who_is_silent(self) -> None:
        now = time.monotonic()
        for member in self.members:
            if member.channel is None or member.lost:
                continue
            began = now - member.began_at
            if member.is_ready and now - member.channel.heard > SILENCE:
                self.lose(member, f"no answer for {SILENCE:.0f} s")
            elif not member.is_ready and began > _START:
                self.lose(member, f"its process was not ready after {began:.0f} s")

    def _take(self, member: Member, event: Mapping[str, Any]) -> None:
        if "out" in event:
            self._show(member, "out", base64.b64decode(event["out"]))
        elif "err" in event:
            self._show(member, "err", base64.b64decode(event["err"]))
        elif "event" in event:
            for line in self._lines(member, "event", base64.b64decode(event["event"])):
                reply = json.loads(line)
                if "ready" in reply:
                    member.is_ready = True
                else:
                    member.replies.append(reply)
        elif "failed" in event:
            self.lose(member, f"{event['failed']} there")
        elif "ended" in event:
            said = "; ".join(member.said)
            self.lose(member, said or f"its process ended with code {event['ended']}")
        elif "lost" in event:
            self.lose(member, event["lost"])

    def _show(self, member: Member, stream: str, data: bytes) -> None:
        """Print what a host printed: that of rank 0 as it is, all else line by line with the host's name."""
        if stream == "out" and member is self.speaker:
            with suppress(OSError):
                sys.stdout.flush()
                os.write(1, data)
            return
        for line in self._lines(member, stream, data):
            text = line.decode(errors="replace").rstrip()
            member.said.append(text)
            if member.is_ready and text:
                file = sys.stdout if stream == "out" else sys.stderr
                with suppress(OSError):
                    print(f"[{member.name}] {escaped(text)}", file=file, flush=True)

    def _lines(self, member: Member, stream: str, data: bytes) -> list[bytes]:
        """The whole lines that have come."""
        *lines, rest = (member.lines.get(stream, b"") + data).split(b"\n")
        member.lines[stream] = rest
        return lines
