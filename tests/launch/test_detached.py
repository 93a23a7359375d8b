"""``train --detach`` and ``attach``: the first host coordinates, and nobody has to stay."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from support.faults.harness import FINDS_TASK, RECIPE
from support.process_server import SERVER

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def rankless(
    folder: Path, *words: str, code: int = 0, terminal: int | None = None, sleep: str = "0.1"
) -> subprocess.CompletedProcess[str]:
    more = {"RANKLESS_CPU": "1", "FAULT_SLEEP": sleep, "PYTHONPATH": FINDS_TASK}
    command = ["-m", "rankless", *words]
    if terminal is None:
        done = SERVER.run(*command, cwd=folder, **more)
    else:
        streams = {"stdout": terminal, "stderr": subprocess.PIPE, "text": True, "timeout": 120}
        done = subprocess.run([sys.executable, *command], cwd=folder, env={**os.environ, **more}, **streams)
    assert done.returncode == code, done
    return done


def test_a_detached_training_is_watched_stopped_and_gone_on_with(tmp_path):
    (tmp_path / "small.yaml").write_text(RECIPE, encoding="utf-8")
    run = RunDirectory(tmp_path / "runs" / "d")
    hosts = ("--hosts", "localhost:2", "--run", "runs/d", "--detach")
    screen, terminal = pty.openpty()
    rankless(tmp_path, "train", "small.yaml", *hosts, terminal=terminal, sleep="1")
    assert b"\ntraining in runs/d, coordinated by localhost (process " in os.read(screen, 4096)
    assert any("step" in entry for entry in journal.read(run.journal)), "it returns when a rank trains"
    for descriptor in (screen, terminal):
        os.close(descriptor)
    again = rankless(tmp_path, "train", "small.yaml", *hosts, code=2)
    assert "already coordinates a run in this directory" in again.stderr

    stopped = rankless(tmp_path, "attach", "runs/d", "--stop", code=85)
    assert f"stopped by SIGTERM; saved after step {run.pointed('last')}; continue with: " in stopped.stdout
    assert "\x1b" not in stopped.stdout, "nothing of a terminal's goes into the log"
    ended = rankless(tmp_path, "attach", "runs/d", "--stop", code=85)
    assert ended.stdout.startswith("runs/d: this run has ended; its output:")

    steps = sum("step" in entry for entry in journal.read(run.journal))
    rankless(tmp_path, "train", "--resume", *hosts)
    assert sum("step" in entry for entry in journal.read(run.journal)) > steps, "those before do not count"
    assert "best (step " in rankless(tmp_path, "attach", "runs/d").stdout
    assert run.pointed("last") == 20


def test_a_coordinator_that_was_killed_is_reported(tmp_path):
    (tmp_path / "small.yaml").write_text(RECIPE, encoding="utf-8")
    words = ("small.yaml", "--hosts", "localhost:1", "--run", "d", "--detach")
    rankless(tmp_path, "train", *words, sleep="1")
    os.kill(json.loads((tmp_path / "d" / "coordinator.json").read_text())["pid"], signal.SIGKILL)
    rankless(tmp_path, "attach", "d", code=128 + signal.SIGKILL)


def test_a_start_that_fails_is_told_at_once_with_its_reason(tmp_path):
    there = ("--hosts", "localhost:1", "--run", "d", "--detach")
    begun = rankless(tmp_path, "train", "--resume", *there, code=2)
    assert "\nerror: d: nothing to resume on localhost (no recipe.yaml" in begun.stderr
    assert "training in" not in begun.stdout
    assert not (tmp_path / "d" / "detached.json").exists()


def test_a_host_that_does_not_answer_names_the_way_on_without_it(tmp_path):
    """A start over SSH that has left nothing on the hosts when its state is read."""
    (tmp_path / "ssh").write_text("#!/bin/sh\n[ -e gone ] && exit 255\necho 77\n")
    (tmp_path / "ssh").chmod(0o700)
    words = ("--hosts", "h1:1,h2:3,h3", "--run", "my d", "--ssh", "./ssh", "--detach")
    rankless(tmp_path, "train", "digits", *words)
    (tmp_path / "gone").touch()
    said = rankless(tmp_path, "attach", "my d", code=2).stderr
    assert "h1: does not respond; the training continues if the host is up; otherwise, " in said
    assert "continue with: rankless train --resume --run 'my d' --hosts h2:3,h3" in said


BANNER = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Someone could be eavesdropping on you right now (man-in-the-middle attack)!
It is also possible that a host key has just been changed.
The fingerprint for the ED25519 key sent by the remote host is
SHA256:ddzvPzUxBxyE6eRiAnQ4n/OpwVJJ/9Hw7oSRrdLmffw.
Please contact your system administrator.
Add correct host key in /home/me/.ssh/known_hosts to get rid of this message.
Offending ED25519 key in /home/me/.ssh/known_hosts:1
  remove with:
  ssh-keygen -f "/home/me/.ssh/known_hosts" -R "[h1]:2222"
Host key for [h1]:2222 has changed and you have requested strict checking.
Host key verification failed.
"""  # of OpenSSH 9.2


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_of_a_changed_host_key_one_line_is_quoted_and_what_to_do(tmp_path, detach):
    (tmp_path / "said").write_text(BANNER.replace("\n", "\r\n"), newline="")
    (tmp_path / "ssh").write_text("#!/bin/sh\ncat said >&2\nexit 255\n")
    (tmp_path / "ssh").chmod(0o700)
    done = rankless(tmp_path, "train", "digits", "--hosts", "h1", "--ssh", "./ssh", *detach, code=2)
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Host key for [h1]:2222 has changed and you have requested strict checking" in error
    assert "; run ssh-keygen -R '[h1]:2222' if you expected the change" in error
    assert len(error) < 250 and "NASTY" not in done.stderr and "@@" not in done.stderr
