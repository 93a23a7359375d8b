"""The supervisor that every host runs, without SSH: it ends what it started, whoever goes."""

from __future__ import annotations

import base64
import inspect
import io
import json
import os
import queue
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rankless.launch.hosts import supervisor
from rankless.launch.hosts.channel import Channel, Events
from rankless.launch.hosts.names import Host
from support.waiting import until

pytestmark = pytest.mark.processes

# A child in another session, which has let go of its parent and of all pipes.
ORPHAN = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork(): os._exit(0)\n"
    "    open('orphan', 'w').write(str(os.getpid()))\n"
    "    for fd in range(20):\n"
    "        try: os.close(fd)\n"
    "        except OSError: pass\n"
    "    time.sleep(600)\n"
    "while not os.path.exists('orphan') or not open('orphan').read(): time.sleep(0.01)\n"
)
WAIT = "import time\ntime.sleep(600)\n"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\n"


class Client:
    """A supervisor, in a folder, and the coordinator's end of its pipes."""

    def __init__(self, folder: Path, **constants: float) -> None:
        source = inspect.getsource(supervisor)
        for name, value in constants.items():
            before = f"{name} = {getattr(supervisor, name)}"
            assert before in source
            source = source.replace(before, f"{name} = {value}")
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "HOME": str(folder)},
        )
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def send(self, do: str, **request: Any) -> None:
        self.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
        self.stdin.flush()

    def start(self, code: str) -> None:
        self.send("start", argv=[sys.executable, "-c", code], env={}, cwd=str(self.folder))

    def event(self, kind: str) -> Any:
        """The next event of one kind; what is printed as bytes."""
        for line in self.stdout:
            if kind in (event := json.loads(line)):
                value = event[kind]
                return base64.b64decode(value) if kind in ("out", "err", "event") else value
        raise AssertionError(f"the connection ended before any {kind}")

    def orphan(self) -> int:
        """The process of ``ORPHAN`` that nobody knows."""
        path = self.folder / "orphan"
        until(lambda: path.exists() and path.read_text())
        return int(path.read_text())


@pytest.fixture
def client(tmp_path):
    made: list[Client] = []

    def make(**constants: float) -> Client:
        made.append(Client(tmp_path, **constants))
        return made[-1]

    yield make
    for one in made:
        with suppress(BrokenPipeError):
            one.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            one.process.wait(10)
        one.process.kill()
        one.process.wait()
        one.stdout.close()


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


@pytest.mark.parametrize("how", ["end of input", "silence", "end", "the process ends"])
def test_nothing_is_left_wherever_it_went(how, client):
    one = client(LEASE=1.0 if how == "silence" else 10.0, GRACE=0.2)
    one.start(ORPHAN + DEAF + ("" if how == "the process ends" else WAIT))
    orphan = one.orphan()
    if how != "the process ends":
        assert one.event("out").strip() == b"deaf"
    if how == "end of input":
        one.stdin.close()
    elif how == "end":
        one.send("end", grace=0.2)
    elif how == "the process ends":
        assert one.event("ended") == 0
        assert not is_alive(orphan)
        one.send("end", grace=0)
    assert one.process.wait(30) == 0
    assert not is_alive(orphan)


def test_a_process_is_asked_before_it_is_killed(client):
    one = client()
    one.start("import signal, sys\nsignal.signal(15, lambda *_: sys.exit(7))\nprint(flush=True)\n" + WAIT)
    one.event("out")
    one.send("end", grace=20)
    assert one.event("ended") == 7


def test_signs_of_life_are_answered_while_the_process_does_not_read(client):
    one = client()
    one.start(WAIT)
    one.send("input", text="x" * 1_000_000)
    one.send("beat")
    assert one.event("beat") == 1


def test_input_of_the_process_arrives_complete_and_so_do_signs_of_life(client):
    one = client()
    one.start(
        'import sys, time\ntime.sleep(0.3)\nr = sys.stdin.readline\nprint(f"{len(r())} {len(r())} {r()}")'
    )
    one.send("input", text="ä" * 100_000)
    one.send("input", text="y")
    one.send("beat")
    assert one.event("out").strip() == b'100001 2 {"do": "beat"}'


def test_a_flood_of_output_arrives_complete_and_does_not_stop_the_signs_of_life(client):
    one = client()
    one.start("import sys\nsys.stdout.write('z' * 30_000_000)\nsys.stdout.flush()\nsys.exit(3)")
    one.send("beat")
    size, beats = 0, 0
    for line in one.stdout:
        event = json.loads(line)
        size += len(base64.b64decode(event.get("out", "")))
        beats += "beat" in event
        if "ended" in event:
            assert event["ended"] == 3
            break
    assert (size, beats) == (30_000_000, 1)


def test_a_process_that_cannot_be_started(client):
    one = client()
    one.send("start", argv=["/no/such/python"], env={}, cwd="/no/such/folder")
    assert "No such file or directory: '/no/such/python'" in one.event("failed")


def packed() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("sent/__init__.py", "print('found')")
    return buffer.getvalue()


def test_code_is_unpacked_once_and_found(client, tmp_path):
    one, argv = client(), [sys.executable, "-c", "import sent"]
    for _ in range(2):
        one.send("unpack", folder=".cache/code/1", data=base64.b64encode(packed()).decode())
    one.send("start", argv=argv, env={"PYTHONPATH": "~/.cache/code/1"}, cwd="/")
    assert one.event("out").strip() == b"found"
    assert [path.name for path in (tmp_path / ".cache/code").iterdir()] == ["1"]


def test_a_damaged_archive_leaves_nothing(client, tmp_path):
    one = client()
    one.start(ORPHAN + WAIT)
    orphan = one.orphan()
    damaged = packed().replace(b"found", b"other")
    one.send("unpack", folder=".cache/code/1", data=base64.b64encode(damaged).decode())
    assert one.process.wait(30) != 0
    assert not is_alive(orphan)
    assert list((tmp_path / ".cache/code").iterdir()) == []


def test_processes_that_the_machine_hides_are_not_looked_at(tmp_path):
    """As /proc is where it is mounted with hidepid=1."""
    for pid, stat in (("1", None), ("77", f"77 (a) b) S {os.getpid()} 1"), ("78", "78 (c) Z 77 1")):
        (tmp_path / pid).mkdir()
        if stat:
            (tmp_path / pid / "stat").write_text(stat)
    assert supervisor.descendants(tmp_path) == {77}


def test_a_killed_supervisor_takes_a_host_process_along(client):
    one = client()
    one.start("from rankless.hardware.processes import die_with_parent\ndie_with_parent()\n" + ORPHAN + WAIT)
    one.orphan()
    child = int(Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()[0])
    one.process.send_signal(signal.SIGKILL)
    until(lambda: not is_alive(child))
    os.kill(one.orphan(), signal.SIGKILL)


def test_the_process_list_of_a_host_stays_readable():
    """The supervisor's source is sent through its input, and not as an argument of several pages."""
    events: Events = queue.Queue()
    channel = Channel(Host("localhost"), (), sys.executable, events)
    try:
        while (event := events.get(timeout=30)[1]).hello is None:
            assert event.lost is None, event
        command = Path(f"/proc/{channel._process.pid}/cmdline").read_bytes()
        assert b"rankless supervisor" in command
        assert len(command) < 400
    finally:
        channel.close()
        while channel.is_open:  # until it has been read to its end
            time.sleep(0.01)
        channel.drop()
