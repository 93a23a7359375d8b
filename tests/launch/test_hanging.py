"""When a rank counts as hung: measured, never guessed, and never because this process itself was away."""

from __future__ import annotations

import math
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankless.errors import UserError
from rankless.launch import ranks
from rankless.launch.hanging import FORK_SERVER, STOPPED, HangDetector, patience
from rankless.launch.job import Pulse, leave_pulse, read_pulse
from support.waiting import until


class Watched:
    def __init__(self) -> None:
        self.now, self.pulses = 100.0, dict[int, Pulse]()
        self.judge = HangDetector(lambda rank, pid: self.pulses.get(rank), lambda: self.now)

    def after(self, seconds: float, *ranks: int, pid: int = 0) -> dict[int, str]:
        """What is found in so many seconds; the ranks are process ``pid``, or none that there is."""
        found: dict[int, str] = {}
        for _ in range(round(seconds)):
            self.now += 1
            found |= self.judge.check({rank: pid or 10**9 + rank for rank in ranks})
        return found


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def wait_for_state(pid: int, state: str) -> None:
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == state)


@pytest.mark.processes
def test_a_stopped_process_hangs_at_any_point_of_its_work(sleeper):
    for rank in (0, FORK_SERVER):
        watched = Watched()
        watched.pulses[0] = Pulse(3, None, "step 2, waiting for other ranks")
        assert not watched.after(3 * STOPPED, rank, pid=sleeper.pid)
        sleeper.send_signal(signal.SIGSTOP)
        wait_for_state(sleeper.pid, "T")
        assert not watched.after(STOPPED - 1, rank, pid=sleeper.pid)
        sleeper.send_signal(signal.SIGCONT)
        wait_for_state(sleeper.pid, "S")
        assert not watched.after(2, rank, pid=sleeper.pid)
        sleeper.send_signal(signal.SIGSTOP)
        wait_for_state(sleeper.pid, "T")
        assert not watched.after(STOPPED, rank, pid=sleeper.pid)
        found = watched.after(3, rank, pid=sleeper.pid)
        assert "was stopped for 6" in found[rank]
        sleeper.send_signal(signal.SIGCONT)


def test_a_rank_without_progress_hangs_and_a_rank_that_waits_for_it_does_not():
    watched = Watched()
    for step in range(4):
        watched.pulses = {0: Pulse(step, 75.0, f"step {step}, computing")}
        watched.pulses[1] = Pulse(step, None, f"step {step}, waiting for other ranks")
        assert not watched.after(70, 0, 1)
    found = watched.after(10, 0, 1)
    assert list(found) == [0]
    assert found[0].startswith("rank 0 hung for 7") and "(step 3, computing)" in found[0]


def test_the_time_in_which_the_judge_itself_was_away_does_not_count():
    """A machine that slept, a job that its cluster suspended with all its processes."""
    watched = Watched()
    watched.pulses[0] = Pulse(1, 60.0, "step 1, computing")
    watched.after(30, 0)
    watched.now += 10_000
    assert not watched.after(20, 0)
    assert watched.after(20, 0)


def test_the_users_patience(monkeypatch):
    assert patience() is None and not Watched().after(5_000, 0), "nothing is known of the rank"
    monkeypatch.setenv("RANKLESS_PATIENCE", "5")
    watched = Watched()
    watched.pulses = {0: Pulse(0, 40.0, "starting"), 1: Pulse(7, 1800.0, "step 6, scoring")}
    assert list(watched.after(10, 0, 1)) == [1]
    assert list(watched.after(40, 0)) == [0], "a start takes as long as it took without the setting"
    monkeypatch.setenv("RANKLESS_PATIENCE", "off")
    assert patience() == math.inf
    watched = Watched()
    watched.pulses = {0: Pulse(7, 1.0, "step 6, computing")}
    assert not watched.after(10_000, 0)


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan", "inf"])
def test_patience_that_is_no_number_of_seconds(text, monkeypatch):
    monkeypatch.setenv("RANKLESS_PATIENCE", text)
    with pytest.raises(UserError, match=f"RANKLESS_PATIENCE is '{text}': expected a number of seconds above"):
        patience()


def test_only_what_a_process_itself_has_told_counts(tmp_path):
    """The rank before it with the same number may have left something."""
    job = tmp_path / "job.json"
    assert read_pulse(job, 1, os.getpid()) is None
    leave_pulse(job, 1, 4, None, "step 3, waiting for other ranks")
    assert read_pulse(job, 1, os.getpid()) == (4, None, "step 3, waiting for other ranks")
    assert read_pulse(job, 1, os.getpid() + 1) is None
    (tmp_path / "pulse-1").write_text("[1, 2")  # half written
    assert read_pulse(job, 1, os.getpid()) is None


@pytest.mark.processes
def test_a_process_that_no_signal_ends_is_an_error_that_names_it():
    """As one whose driver or disk does not answer in the kernel: waiting for it would never end."""

    def wait(seconds: float) -> int:
        raise subprocess.TimeoutExpired("rank", seconds)

    sleeping = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
    processes = {
        4 + i: SimpleNamespace(pid=one.pid, poll=one.poll, wait=wait) for i, one in enumerate(sleeping)
    }
    with pytest.raises(UserError, match=rf"rank 4 \(process {sleeping[0].pid}\) could not be killed"):
        ranks.Ranks._kill_all(SimpleNamespace(processes=processes))  # type: ignore[arg-type]
    assert [one.wait(30) for one in sleeping] == [-signal.SIGKILL] * 2, "all of them were told"
