"""Connect to a host's supervisor over SSH, or without SSH if the host is this machine."""

from __future__ import annotations

import base64
import hashlib
import inspect
import io
import os
import queue
import re
import secrets
import shlex
import subprocess
import sys
import threading
import time
import zipfile
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

import rankless
from rankless.launch.hosts import supervisor
from rankless.launch.hosts.messages import Beat, Command, Event
from rankless.launch.hosts.names import HERE, Host, ssh_words
from rankless.messages import line

_KINDS = (".py", ".yaml", ".typed")
BEAT = 1.0  # seconds between two beats, which the supervisor answers
SILENCE = 30.0  # seconds after which a silent host counts as lost; shorter network outages are tolerated
MISSED = 8.0  # the same if ranks of other hosts have lost a peer
OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")  # SSH must never prompt
# SSH's own keepalive gives up on a silent host later than the coordinator does.
_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=8")
_KEPT_LINES = 20
_CHANGED = r"(?i)(?:\w+ )?host key for (\S+) has changed[^.;\n]*"
_FIXES = (
    (r"cannot be started|user config", "SSH", "correct --ssh or ~/.ssh/config until ssh {address} works"),
    (r"Permission denied", "SSH", "run ssh-copy-id {address}, or add your key to ssh-agent with ssh-add"),
    (_CHANGED, "SSH", "run ssh-keygen -R {known} if you expected the change (such as a new machine)"),
    (r"Host key verification failed", "SSH", "run ssh {address} once to check and accept its key"),
    (r"[Nn]ot known|resolve hostname", "SSH", "use a name from ~/.ssh/config, /etc/hosts or DNS"),
    (r"Connection refused", "SSH", "start its SSH server (sudo systemctl start ssh)"),
    (
        r"timed out|No route|unreachable|Connection closed|reset",
        "SSH",
        "check that it is up (ping {address})",
    ),
    (r"No module named '?rankless", "rankless", "add --sync, or install rankless {version} there"),
    (r"not found|No such file", "Python", "use --python PATH with an interpreter that exists there"),
    (r"No module named", "packages", "install the same packages there, or use another --python"),
)


@dataclass(frozen=True)
class Package:
    """The code of this copy of Rankless, which is sent to hosts and run there (``--sync``)."""

    folder: str  # below the home directory; its name depends on the content
    data: str  # zip archive in base64


@dataclass(frozen=True)
class Access:
    """Settings for connecting to hosts and for starting processes there."""

    ssh: Sequence[str]
    python: str  # interpreter of the ranks
    helper: str  # interpreter of the supervisor, which needs no packages
    env: Mapping[str, str]
    cwd: str  # the home directory is used if it does not exist
    package: Package | None = None  # None if the hosts run their own copies
    options: Sequence[str] = ()  # that give these settings on the command line


def host_access(ssh: str, python: str | None, *, sync: bool = False) -> Access:
    """Return the settings for the given command-line options."""
    env = {name: text for name, text in os.environ.items() if name.startswith("RANKLESS_") and name != HERE}
    env.setdefault("RANKLESS_SECRET", secrets.token_hex(32))  # sent only over SSH (world/secret)
    if sys.stdout.isatty():  # rank 0 shows its progress bar although it writes to a pipe
        size = os.get_terminal_size(1)
        env |= {"FORCE_COLOR": "1", "COLUMNS": str(size.columns), "LINES": str(size.lines)}
    words = ssh_words(ssh)
    code = _package() if sync else None
    if code:
        env["PYTHONPATH"] = f"~/{code.folder}"
    options = ["--ssh", ssh] if words != ["ssh"] else []
    options += ["--python", python] if python else []
    options += ["--sync"] if sync else []
    return Access(words, python or sys.executable, python or "python3", env, str(Path.cwd()), code, options)


def _package() -> Package:
    root = Path(rankless.__file__).parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in root.rglob("*") if path.suffix in _KINDS):
            entry = zipfile.ZipInfo(str(Path("rankless") / path.relative_to(root)))
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    content = buffer.getvalue()
    name = hashlib.sha256(content).hexdigest()[:16]
    return Package(f".cache/rankless/code/{name}", base64.b64encode(content).decode())


Events = queue.Queue[tuple["Channel", Event]]


class Channel:
    """A connection to a host's supervisor. Connecting starts the supervisor.

    Each event is put into ``events`` as (channel, event). The ``lost`` field of the last event gives the
    reason why the connection ended.
    """

    def __init__(self, host: Host, ssh: Sequence[str], python: str, events: Events) -> None:
        self.host, self.is_open, self.heard = host, True, time.monotonic()
        self._events, self._output = events, deque[str](maxlen=_KEPT_LINES)
        source = inspect.getsource(supervisor).encode()
        # Read without a buffer, which would take in the requests that follow.
        code = f"import os\ns,n=b'',{len(source)}\nwhile len(s)<n:s+=os.read(0,n-len(s))or exit()\nexec(s)"
        words = [python, "-u", "-c", code, "rankless supervisor"]
        command = words if host.is_here else [*ssh, *OPTIONS, *_ALIVE, host.address, shlex.join(words)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # only the coordinator receives Ctrl-C from the terminal
        )
        self._written: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._written.put(source)
        for work in (self._read, self._listen_to_ssh, self._write):
            threading.Thread(target=work, daemon=True, name=f"{work.__name__} {host.name}").start()

    def send(self, do: str, **request: Any) -> None:
        """Send a request to the supervisor without blocking."""
        self._written.put(line({"do": do, **request}))

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        self.send("start", argv=list(argv), env=dict(env), cwd=cwd)

    def command(self, command: Command[Any]) -> None:
        """Send a command to the host's process."""
        self.send("input", text=msgspec.json.encode(command).decode())

    def close(self, grace: float = 0.0) -> None:
        """Tell the supervisor to end all processes that it started and to exit, but do not wait for it."""
        self.send("end", grace=grace)

    def drop(self) -> None:
        """Close the connection; the supervisor then ends by itself, at the latest when its lease expires."""
        self.is_open = False
        self._written.put(None)
        with suppress(ProcessLookupError):
            self._process.kill()

    def _read(self) -> None:
        with _piped(self._process.stdout) as output:
            for text in output:
                self.heard = time.monotonic()
                try:
                    event = msgspec.json.decode(text, type=Event)
                except ValueError:  # output of a login script
                    self._output.append(text.decode(errors="replace").rstrip())
                    continue
                if not event.beat:
                    self._put(event)
        self._process.wait()
        time.sleep(0.05)  # for the last output of ssh
        why = (
            main_part("; ".join(self._output)) or f"the connection ended with code {self._process.returncode}"
        )
        self._put(Event(lost=why))
        self.is_open = False

    def _put(self, event: Event) -> None:
        while self.is_open:
            self.heard = time.monotonic()  # the delay is not the host's
            with suppress(queue.Full):
                self._events.put((self, event), timeout=BEAT)
                return

    def _listen_to_ssh(self) -> None:
        with _piped(self._process.stderr) as errors:
            for text in errors:
                if message := text.decode(errors="replace").strip():
                    self._output.append(message)

    def _write(self) -> None:
        """Write queued requests to the supervisor, and a heartbeat whenever the queue is empty."""
        pipe = _piped(self._process.stdin)
        beat = line(Beat())
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
    if stream is None:
        raise ValueError("the process was started without this pipe")
    return stream


def main_part(output: str) -> str:
    """Return only the sentence about a changed host key if ``output`` contains one, otherwise ``output``."""
    changed = re.search(_CHANGED, output)
    return changed[0] if changed else output


def remedy(reason: str, address: str, python: str) -> tuple[str, str]:
    """Return a short subject and a fix for a host that cannot be used because of ``reason``."""
    found = ((name, fix) for pattern, name, fix in _FIXES if re.search(pattern, reason))
    name, fix = next(found, ("answer", "check the output of ssh {address} {python} -m rankless --version"))
    changed = re.search(_CHANGED, reason)
    known = shlex.quote(changed[1]) if changed else ""  # with the port, as in known_hosts
    return name, fix.format(address=address, python=python, version=rankless.__version__, known=known)
