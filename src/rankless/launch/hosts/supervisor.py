"""A program that runs one process for its client; its source is sent to every host.

It needs only Python 3.8 or newer. It reads requests as lines of JSON from standard input and writes events to
standard output, both over SSH. The input is a lease: if it ends or is silent for some seconds, because the
network is down or the client was killed, the process is asked to exit. After a grace period, all descendants
of the supervisor are killed, so that nothing keeps running on a host.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any, Callable  # noqa: UP035  # for Python 3.8

LEASE = 40.0  # seconds of silence from the client, which gives up this host earlier
GRACE = 8.0  # seconds from telling a process to end until it is killed, once the client is gone
FULL = 1 << 24  # bytes queued for a slow client above which the output of the process has to wait
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, <linux/prctl.h>


class Supervisor:
    """The supervised process, its output, and the connection to the client."""

    def __init__(self) -> None:
        self.received = b""
        self.waiting = bytearray()  # bytes to send to the client
        self.asked = bytearray()  # bytes to write to the process
        self.child: subprocess.Popen[bytes] | None = None
        self.names: dict[int, str] = {}  # descriptor -> kind of its output
        self.heard = time.monotonic()
        self.kill_at: float | None = None  # time to kill everything
        self.gone = False  # the client is gone
        self.do: dict[str, Callable[..., None]] = {
            "beat": self.beat,
            "start": self.start,
            "input": self.input,
            "unpack": self.unpack,
            "end": self.end,
        }

    def run(self) -> None:
        """Serve the client until the process has ended, and then kill all descendants."""
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self.end(GRACE))
        for descriptor in (0, 1):
            os.set_blocking(descriptor, False)
        self.send(hello={"host": socket.gethostname(), "python": sys.executable, "home": str(Path.home())})
        try:
            self.serve()
        finally:
            kill_all()
        while self.waiting and not self.gone and time.monotonic() < self.heard + LEASE:
            self.step()

    def serve(self) -> None:
        """Serve the client until the process has been asked to exit and has exited."""
        while True:
            self.step()
            now = time.monotonic()
            if not self.gone and now - self.heard > LEASE:
                self.lose()
            self.reap()
            if self.kill_at is not None:
                if self.child is None:
                    break
                if now > self.kill_at:
                    kill_all()

    def step(self) -> None:
        """Wait until a stream can be read or written, and handle it."""
        reads = [] if self.gone else [0]
        reads += list(self.names) if len(self.waiting) < FULL else []
        writes = [1] if self.waiting and not self.gone else []
        child = self.child.stdin.fileno() if self.child and self.child.stdin and self.asked else None
        ready, writable, _ = select.select(reads, writes if child is None else [*writes, child], [], 0.2)
        for descriptor in ready:
            if descriptor == 0:
                self.hear()
            else:
                self.forward(descriptor)
        if child in writable:
            try:
                del self.asked[: os.write(child, self.asked)]
            except BlockingIOError:
                pass
            except OSError:  # the process has ended; reap() will report how
                self.asked.clear()
        if 1 in writable:
            try:
                del self.waiting[: os.write(1, self.waiting)]
            except BlockingIOError:
                pass
            except OSError:
                self.lose()

    def hear(self) -> None:
        """Read and handle the client's requests."""
        try:
            data = os.read(0, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.lose()
            return
        self.heard = time.monotonic()
        lines = (self.received + data).split(b"\n")
        self.received = lines.pop()
        for line in lines:
            request = json.loads(line)
            try:
                self.do[request.pop("do")](**request)
            except OSError as error:
                self.send(failed=str(error))

    def beat(self) -> None:
        """Answer a heartbeat from the client and pass it on to the process."""
        self.send(beat=1)
        self.input('{"do": "beat"}')

    def start(self, argv: list[str], env: dict[str, str], cwd: str) -> None:
        """Start the process; its descriptor EVENTS_FD carries lines for the client."""
        home = str(Path.home())
        env = {name: home + text[1:] if text.startswith("~/") else text for name, text in env.items()}
        if "PYTHONPATH" in env and os.environ.get("PYTHONPATH"):
            env["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
        events, theirs = os.pipe()
        folder = cwd if Path(cwd).is_dir() else home
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs,),
                # Silence PyTorch's warnings about connections from addresses without a name.
                env={"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, **env, "EVENTS_FD": str(theirs)},
                cwd=folder,
                start_new_session=True,
            )
        except OSError:
            os.close(events)
            raise
        finally:
            os.close(theirs)
        self.child = child
        if child.stdin is not None:  # a process that does not read must not block this one
            os.set_blocking(child.stdin.fileno(), False)
        self.names = {events: "event"}
        for pipe, name in ((child.stdout, "out"), (child.stderr, "err")):
            if pipe is not None:
                self.names[pipe.fileno()] = name

    def input(self, text: str) -> None:
        if self.child is not None:
            self.asked += text.encode() + b"\n"

    def unpack(self, folder: str, data: str) -> None:
        """Unpack an archive into a folder below the home directory, unless the folder exists."""
        target = Path.home() / folder
        if target.is_dir():
            return
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with zipfile.ZipFile(io.BytesIO(base64.b64decode(data))) as archive:
                archive.extractall(beside)
            with contextlib.suppress(OSError):  # another process was faster
                beside.rename(target)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def end(self, grace: float) -> None:
        """Tell the process to end, and kill it after ``grace`` seconds."""
        at = time.monotonic() + grace
        if self.kill_at is None or at < self.kill_at:
            self.kill_at = at
            if self.child is not None and grace:
                with contextlib.suppress(OSError):
                    os.kill(self.child.pid, signal.SIGTERM)

    def lose(self) -> None:
        """Record that the client is gone, and tell the process to end."""
        self.gone = True
        self.waiting.clear()
        self.end(GRACE)

    def forward(self, descriptor: int) -> None:
        data = os.read(descriptor, 1 << 16)
        if data:
            self.send(**{self.names[descriptor]: base64.b64encode(data).decode()})
        else:
            del self.names[descriptor]

    def send(self, **event: Any) -> None:
        if not self.gone:
            self.waiting += json.dumps(event).encode() + b"\n"

    def reap(self) -> None:
        """Reap exited processes; if the started process has exited, kill its descendants."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except OSError:
                return
            if not pid:
                return
            if self.child is not None and pid == self.child.pid:
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
                self.child.returncode = code
                kill_all()
                while self.names and not self.gone:
                    before = len(self.names)
                    ready, _, _ = select.select(list(self.names), [], [], 0.2)
                    for descriptor in ready:
                        self.forward(descriptor)
                    if not ready and len(self.names) == before:
                        break
                self.child, self.names = None, {}
                self.asked.clear()
                self.send(ended=code)


def kill_all() -> None:
    """Kill all descendants of this process, and wait up to 5 seconds for them to exit."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        left = descendants()
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def descendants(proc: Path = Path("/proc")) -> set[int]:
    """Return the process IDs of all living descendants of this process."""
    parents = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            except OSError:  # the process has ended, or is another user's, which some machines hide
                continue
            if state != b"Z":
                parents[int(folder.name)] = int(parent)
    below = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        if not more:
            return below - {os.getpid()}
        below |= more


if __name__ == "__main__":
    Supervisor().run()
