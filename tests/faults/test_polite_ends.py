"""Requests to stop: the step is finished and saved, a sentence says how to go on, the bits stay the same."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from rankless.launch.requests import Requests
from support.faults.harness import HERE, Run, finish, kill, outcome, recipe_file
from support.process_server import SERVER

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
SLOW = {"FAULT_SLEEP": "0.1"}


def stopped(run: Run, code: int, name: str) -> None:
    last = run.ends(code).splitlines()[-1]
    saved = run.run.pointed("last")
    assert saved == run.step(), "the step under way is saved"
    again = f"continue with: rankless train --resume --run {run.run.path}"
    assert last == f"stopped by {name}; saved after step {saved}; {again}"


def test_a_run_that_was_stopped_by_every_signal_ends_with_the_same_result(tmp_path, expected):
    folder = tmp_path / "run"
    with Run(folder, 1, "workers=1", environment=SLOW) as run:
        run.until(lambda: run.step() >= 2)
        os.killpg(run.process.pid, signal.SIGINT)  # Ctrl-C
        stopped(run, 130, "SIGINT")
    with Run(folder, 3, "--resume", "workers=0", environment=SLOW) as run:
        run.until(lambda: run.step() >= 7)
        kill(run.pid("rank 1"), signal.SIGTERM)
        stopped(run, 85, "SIGTERM")
    with Run(folder, 1, "--resume", environment=SLOW) as run:
        run.until(lambda: run.step() >= 12)
        kill(run.pid("launcher"), signal.SIGTERM)
        stopped(run, 85, "SIGTERM")
    assert finish(folder, 2) == expected


def test_a_second_interrupt_ends_at_once(tmp_path):
    with Run(tmp_path / "run", 2, environment={"FAULT_SLEEP": "30"}) as run:
        run.until(lambda: run.run.journal.exists())
        for _ in range(2):
            os.killpg(run.process.pid, signal.SIGINT)
            time.sleep(0.5)
        assert "stopped by SIGINT; nothing was saved yet" in run.ends(130, seconds=5)


@pytest.mark.parametrize("library", ["_pydantic_core", "libtorch_cpu"])  # the first and the slowest
def test_a_sigterm_while_libraries_are_loaded_is_one_like_later_ones(tmp_path, library):
    with Run(tmp_path / "run", 2, new=True) as run:
        maps = Path(f"/proc/{run.process.pid}/maps")
        run.until(lambda: library in maps.read_text())
        kill(run.process.pid, signal.SIGTERM)
        assert run.ends(85) == "stopped by SIGTERM before the run started\n"


def test_an_interrupt_while_it_starts_shows_no_traceback(tmp_path):
    with Run(tmp_path / "run", 2) as run:
        run.pid("rank 0")
        os.killpg(run.process.pid, signal.SIGINT)
        run.ends(130)


def test_a_closed_terminal_silences_the_run_and_does_not_end_it(tmp_path, expected):
    folder = tmp_path / "run"
    words = ["prepared.py", "nohup", "-m", "rankless", "train", str(recipe_file(folder))]
    environment = {**os.environ, "RANKLESS_CPU": "1", **SLOW}
    takes, gives = os.pipe()
    with tempfile.TemporaryFile() as errors:
        with os.fdopen(takes, "rb") as said:
            with os.fdopen(gives, "wb") as terminal:
                process = SERVER.start(
                    [*words, "--run", str(folder), "--devices", "1"],
                    environment=environment, cwd=HERE, output=terminal, errors=errors,
                )  # fmt: skip
            assert said.readline().startswith(b"training in")
        os.killpg(process.pid, signal.SIGHUP)
        assert process.wait(60) == 0
        errors.seek(0)
        assert errors.read() == b""
    assert outcome(folder) == expected


def test_requests_are_noted_and_two_at_once_are_one():
    before = signal.getsignal(signal.SIGTERM)
    with Requests() as requests:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # as `timeout` does
        assert requests.first is signal.SIGTERM
        assert not requests.hurry
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        assert requests.hurry
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Requests() as requests:
            os.kill(os.getpid(), signal.SIGHUP)
            assert requests.first is None
    finally:
        signal.signal(signal.SIGHUP, before)
