"""One host, as the coordinator sees it: a supervisor at the other end of an SSH connection."""

from __future__ import annotations

import inspect
import json
import queue
import shlex
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from rankless.launch.hosts import supervisor
from rankless.launch.hosts.names import Host
from rankless.launch.hosts.reasons import quoted

BEAT = 1.0
"""Seconds between two signs of life that a supervisor is sent, and answers."""
SILENCE = 30.0
"""Seconds without a word after which a host counts as lost; the client's cable may be out for shorter."""
MISSED = 8.0
"""The same where the ranks of other hosts have lost a rank, too."""
OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
"""Of every connection: it asks for nothing."""
# What the connection itself does when nobody answers; it ends after the coordinator has given the host up.
_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=8")
_KEPT_LINES = 20

Event = tuple["Channel", dict[str, Any]]


class Channel:
    """A connection to the supervisor of a host, which starts it.

    Args:
        host: where.
        ssh: the command, ``("ssh",)`` or with the user's options.
        python: the interpreter there that runs the supervisor.
        events: gets every event as (channel, event); ``{"lost": why}`` is the last one.

    Attributes:
        heard: when something came last, by the monotonic clock.
        is_open: whether events are wanted.
    """

    def __init__(self, host: Host, ssh: Sequence[str], python: str, events: queue.Queue[Event]) -> None:
        self.host, self.is_open, self.heard = host, True, time.monotonic()
        self._events, self._said = events, deque[str](maxlen=_KEPT_LINES)
        source = inspect.getsource(supervisor).encode()
        # Read without a buffer, in which requests that follow would stay.
        code = f"import os\ns,n=b'',{len(source)}\nwhile len(s)<n:s+=os.read(0,n-len(s))or exit()\nexec(s)"
        words = [python, "-u", "-c", code, "rankless supervisor"]
        command = words if host.is_here else [*ssh, *OPTIONS, *_ALIVE, host.address, shlex.join(words)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is the coordinator's
        )
        self._written: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._written.put(source)
        for work in (self._read, self._listen_to_ssh, self._write):
            threading.Thread(target=work, daemon=True, name=f"{work.__name__} {host.name}").start()

    def send(self, do: str, **request: Any) -> None:
        """Ask the supervisor for something; it never blocks."""
        self._written.put(json.dumps({"do": do, **request}).encode() + b"\n")

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        """Have the supervisor start its process."""
        self.send("start", argv=list(argv), env=dict(env), cwd=cwd)

    def command(self, do: str, **request: Any) -> None:
        """Ask the process for something."""
        self.send("input", text=json.dumps({"do": do, **request}))

    def close(self, grace: float = 0.0) -> None:
        """Have the supervisor end, with everything that it has started; do not wait."""
        self.send("end", grace=grace)

    def drop(self) -> None:
        """Forget the host: the supervisor there ends by itself, at the latest when its lease runs out."""
        self.is_open = False
        self._written.put(None)
        with suppress(ProcessLookupError):
            self._process.kill()

    def _read(self) -> None:
        with _piped(self._process.stdout) as output:
            for line in output:
                self.heard = time.monotonic()
                try:
                    event = json.loads(line)
                except ValueError:  # what a login script prints
                    self._said.append(line.decode(errors="replace").rstrip())
                    continue
                if isinstance(event, dict) and "beat" not in event:
                    self._put(event)
        self._process.wait()
        time.sleep(0.05)  # for what ssh said last
        why = quoted("; ".join(self._said)) or f"the connection ended with code {self._process.returncode}"
        self._put({"lost": why})
        self.is_open = False

    def _put(self, event: dict[str, Any]) -> None:
        """Hand an event over, and wait where too many have not been looked at, unless nobody wants them."""
        while self.is_open:
            self.heard = time.monotonic()  # it is not the host that is slow
            with suppress(queue.Full):
                self._events.put((self, event), timeout=BEAT)
                return

    def _listen_to_ssh(self) -> None:
        with _piped(self._process.stderr) as errors:
            for line in errors:
                if text := line.decode(errors="replace").strip():
                    self._said.append(text)

    def _write(self) -> None:
        """Write what is to be sent, and a beat where that is nothing."""
        pipe = _piped(self._process.stdin)
        beat = json.dumps({"do": "beat"}).encode() + b"\n"
        with suppress(OSError, ValueError):
            while True:
                try:
                    data = self._written.get(timeout=BEAT)
                except queue.Empty:
                    data = beat
                if data is None:
                    break
                pipe.write(data)
                pipe.flush()
        with suppress(OSError, ValueError):
            pipe.close()


def _piped(stream: IO[bytes] | None) -> IO[bytes]:
    """A stream of a process that was started with pipes."""
    if stream is None:
        raise ValueError("the process was started without this pipe")
    return stream
