"""What is forked is what a new interpreter would be: its signals, files, variables, path and end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankless.hardware import forking

pytestmark = pytest.mark.processes

# A launcher whose workers note what they are, and end as their first argument says.
LAUNCHER = """
import atexit, json, os, signal, sys, threading, time
from pathlib import Path
from rankless.launch import fork_server, worker

def work():
    how, _, out = sys.argv[1:]
    atexit.register(Path(out + ".exit").touch)
    threading.Thread(target=lambda: (time.sleep(0.1), Path(out + ".thread").touch())).start()
    Path(out + ".part").write_text(json.dumps({
        "path": sys.path, "variables": dict(os.environ), "leads": os.getsid(0) == os.getpid() == os.getpgrp(),
        "bound to": [int(sys.argv[2]), os.getppid()],
        "files": [str(d) for d in Path("/proc/self/fd").iterdir() if int(d.name) > 2 and d.exists()],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "handlers": [str(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGHUP)],
    }))
    Path(out + ".part").rename(out + ".json")  # whole from the moment it is there: "wait" is killed then
    print("a line that is not flushed", end="")
    if how == "raise":
        raise ValueError("deliberately")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "wait":
        time.sleep(60)
    return int(how)

worker.main = work
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
assert fork_server.running() is None
fork_server.start()
assert fork_server.running() is None, "not allowed so far"
fork_server.allow()
fork_server.start("detect")
server = fork_server.running()
ended = {}
for how in sys.argv[2:]:
    variables = {"ONLY": how, "PATH": os.environ["PATH"]}
    rank = server.fork(fork_server.run_worker, (how, "1", f"{sys.argv[1]}/{how}"), variables)
    if how == "wait":
        while not Path(f"{sys.argv[1]}/wait.json").exists():
            time.sleep(0.01)
        assert rank.poll() is None
        os.killpg(rank.pid, signal.SIGKILL)
    ended[how] = rank.wait(60)
    assert rank.poll() == ended[how]
    rank.send_signal(signal.SIGTERM)  # to nobody
print(json.dumps(ended))
"""


def launched(folder: Path, *how: str) -> tuple[dict[str, int], str, dict[str, dict[str, Any]]]:
    """Exit codes by worker, what all of them wrote into the standard error, and what they noted."""
    result = subprocess.run(
        [sys.executable, "-c", LAUNCHER, str(folder), *how],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    notes = {each.stem: json.loads(each.read_text()) for each in folder.glob("*.json")}
    printed = result.stdout.splitlines()[-1]
    assert printed.startswith("a line that is not flushed")
    return json.loads(printed[printed.index("{") :]), result.stderr, notes


def test_a_forked_worker_is_what_a_new_interpreter_would_be(tmp_path):
    codes, printed, notes = launched(tmp_path, "0", "75", "raise", "kill", "wait")
    assert codes == {"0": 0, "75": 75, "raise": 1, "kill": -signal.SIGKILL, "wait": -signal.SIGKILL}
    assert printed.count("Traceback") == 1 and printed.endswith("ValueError: deliberately\n")
    for how in ("0", "75", "raise"):
        assert (tmp_path / f"{how}.exit").exists() and (tmp_path / f"{how}.thread").exists(), how
    assert set(notes) == set(codes)
    for how, note in notes.items():
        here = {"", str(tmp_path)}
        assert not here & set(note["path"]), "the folder where a command is given is no place for libraries"
        variables = {"ONLY": how, "PATH": os.environ["PATH"], "PYTHONSAFEPATH": "1"}
        assert {name: note["variables"][name] for name in variables} == variables
        assert set(note["variables"]) <= {*variables, "LC_CTYPE"}
        assert note["leads"]
        assert note["bound to"][0] == note["bound to"][1]
        assert note["files"] == []
        assert note["blocked"] == sorted([signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
        assert note["handlers"] == [str(signal.SIG_DFL), str(signal.SIG_IGN)]


def test_a_server_that_does_not_answer_is_said_not_to(monkeypatch, tmp_path):
    """It is killed, but the signal is not the reason."""
    monkeypatch.setattr(forking, "_PATIENCE", 0.2)
    with (
        socket.socket(socket.AF_UNIX) as listener,
        subprocess.Popen(["sleep", "60"], pass_fds=[listener.fileno()]) as silent,
    ):
        listener.bind(str(tmp_path / "server"))
        listener.listen()
        server = forking.ForkServer(str(tmp_path / "server"), 0, silent.pid)
        listener.close()
        assert server.fork(print).poll() == -signal.SIGKILL
    assert (server.alive, server.cause) == (False, "did not answer for 0.2 s and was killed")


def test_a_process_counts_as_killed_once_its_server_is_dead(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as dead:
        server = forking.ForkServer(str(tmp_path / "nobody listens here"), 0, dead.pid)
        assert server.fork(print).wait(10) == -signal.SIGKILL
    assert (server.alive, server.code) == (False, -signal.SIGKILL)
