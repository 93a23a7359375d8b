"""Processes that die without a word: the run goes on or can go on, same bits, and nobody is left behind."""

from __future__ import annotations

import os
import signal

import pytest

from rankless.engine.checkpoint import newest, remove_old
from rankless.runs.directory import RunDirectory
from support.faults.harness import Run, finish, kill, outcome, parent

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
SLOW = {"FAULT_SLEEP": "0.05"}


def test_a_killed_rank_is_restarted_and_the_run_goes_on(tmp_path, expected):
    """Rank 0, which writes; rank 1 is killed in ``test_saves.py``."""
    with Run(tmp_path / "run", 2, environment=SLOW) as run:
        run.until(lambda: run.step() >= 4 and run.run.pointed("last") == 3)
        kill(run.pid("rank 0"))
        killed = "rank 0 was killed by SIGKILL"
        assert f"{killed}; restarting from the newest checkpoint" in run.ends(0)
        (death,), (resumed,) = run.events("death"), run.events("resume")
        assert (death["rank"], death["signal"], death["at"] >= 4) == (0, "SIGKILL", True)
        assert (resumed["at"], resumed["reason"]) == (3, killed)
        log = (run.run.logs / "rank-1.log").read_text(encoding="utf-8")
        first, second = [line for line in log.splitlines() if line.startswith("=== ")]
        assert first.endswith(": train starts") and second.endswith(f": {killed}")
        assert "lost a peer" in log, "what the first start wrote is still there"
    assert outcome(tmp_path / "run") == expected


def test_a_rank_that_hangs_is_killed_and_replaced(tmp_path, expected):
    """One whose driver does not answer, while its process lives on; then one that is stopped."""
    environment = {**SLOW, "RANKLESS_PATIENCE": "6", "FAULT_HANG": str(tmp_path / "hung")}
    with Run(tmp_path / "run", 2, environment=environment) as run:
        run.until(lambda: len(run.starts()) == 2)
        hung = run.text()
        run.until(lambda: run.step() >= 10)
        kill(run.pid("rank 0"), signal.SIGSTOP)
        assert "warning: rank 0 was stopped for " in run.ends(0).removeprefix(hung)
        assert "warning: rank 1 hung for " in hung and "computing) and was killed; restarting from" in hung
        deaths, resumed = run.events("death"), run.events("resume")
        assert [(death["rank"], death["signal"]) for death in deaths] == [(1, "SIGKILL"), (0, "SIGKILL")]
        assert [event["reason"] for event in resumed] == [death["text"] for death in deaths]
    assert outcome(tmp_path / "run") == expected


def test_the_run_survives_the_process_that_forks_its_ranks(tmp_path, expected):
    with Run(tmp_path / "run", 1, environment=SLOW) as run:
        run.until(lambda: run.step() >= 4 and run.run.pointed("last"))
        server = parent(run.pid("rank 0"))
        assert server != run.process.pid
        kill(server)
        run.until(lambda: len(run.starts()) == 2)
        assert parent(run.pid("rank 0")) == run.process.pid, "a new interpreter, as nothing is left to fork"
        said = run.ends(0)
        died = "the process that forks the ranks was killed by SIGKILL, so the ranks died with it"
        assert f"{died}; restarting from the newest checkpoint" in said and said.count("training in ") == 1
        (death,) = run.events("death")
        assert (death["text"], death["signal"], "rank" in death) == (died, "SIGKILL", False)
    assert outcome(tmp_path / "run") == expected


def test_ranks_and_loader_processes_die_with_the_launcher(tmp_path, expected):
    folder = tmp_path / "run"
    # Slow enough that it would go on for long if nothing ended it.
    with Run(folder, 2, "workers=1", environment={"FAULT_SLEEP": "0.2"}) as run:
        run.until(lambda: run.step() >= 4)
        before = {process.kind for process in run.processes()}
        kill(run.pid("launcher"))
        assert run.wait() == -signal.SIGKILL
        assert before == {"launcher", "rank 0", "rank 1", "other"}, "the scan sees loader processes"
        run.gone(seconds=8)
    # What a dead process leaves: a checkpoint and a pointer that were being written, and its lock.
    (folder / "checkpoints" / ".step-000000009.77.tmp").mkdir()
    (folder / "checkpoints" / ".step-000000009.77.tmp" / "model.safetensors").write_bytes(b"half")
    (folder / "checkpoints" / ".rankless-0123456789abcdef.tmp").write_text("step-0000")
    (folder / ".lock").write_text("77")
    assert finish(folder, 3, "workers=0") == expected
    assert not list(folder.rglob("*.tmp"))


def test_a_run_of_which_nothing_lives_falls_back_behind_a_cut_checkpoint(tmp_path, expected):
    folder = tmp_path / "run"
    with Run(folder, 3, environment=SLOW) as run:
        run.until(lambda: run.run.pointed("last") == 6)
        for process in run.processes():
            kill(process.pid)
        run.wait()
        run.gone()
        cut = run.run.step_directory(run.run.steps()[-1]) / "model.safetensors"
        torn = run.run.journal.read_bytes()
    os.truncate(cut, cut.stat().st_size // 2)
    (folder / "journal.jsonl").write_bytes(torn + b'{"step":99,"lo')
    with Run(folder, 2, "--resume") as again:
        assert "is damaged (wrong checksum of model.safetensors); falling back" in again.ends(0)
    assert outcome(folder) == expected


def test_a_damaged_later_checkpoint_does_not_push_out_a_whole_one(tmp_path):
    run = RunDirectory(tmp_path)
    for step in (3, 6, 9):
        run.step_directory(step).mkdir(parents=True)
    run.point("last", 6)  # the run fell back behind 9 and has just saved 6
    remove_old(run, 1, best=3)
    assert run.steps() == [3, 6]


def test_a_crash_that_comes_again_and_again_ends_with_a_sentence(tmp_path):
    with Run(tmp_path / "run", 1, environment={"FAULT_ABORT": "9"}) as run:
        said = run.ends(1)
        *_, warning, error = said.splitlines()
        assert warning.startswith("warning: rank 0 was killed by SIGABRT; giving up after 3 restarts ")
        assert error.startswith(f"error: the ranks could not continue; see {run.run.logs}")
        assert said.count("restarting from the beginning (nothing was saved yet)\n") == 3
        assert "Aborted" in (run.run.logs / "rank-0.log").read_text(encoding="utf-8")
    warnings: list[str] = []
    assert newest(RunDirectory(tmp_path / "run"), warnings.append) is None
    assert not warnings
