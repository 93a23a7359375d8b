"""Saves that take longer than a launcher's patience: whatever ends the run meanwhile, what is saved stays."""

from __future__ import annotations

import os
import signal
import time

import pytest

from rankless.engine import checkpoint
from rankless.launch.ranks import NOTICE
from rankless.runs.saving import saving_process
from support.faults.harness import Run, finish, kill

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
SLOW = {"FAULT_SAVE": str((NOTICE + 1) / 2)}  # of the model and of its average, each


def test_an_evaluation_that_fails_on_all_ranks_loses_no_step_to_a_slow_save(tmp_path, expected):
    folder = tmp_path / "run"
    with Run(folder, 2, "checkpoint.every=100", environment={**SLOW, "FAULT_BUG": "score 1"}) as run:
        said = run.ends(1, noisy=True)
        assert "LookupError: the labels are away" in said and "the checkpoint of step 10 is" in said
        assert run.run.pointed("last") == 10 and "Traceback" not in said
        assert not [*folder.rglob("*.tmp"), *folder.glob(".saving")]
    assert finish(folder, 1) == expected


def test_a_peer_that_dies_does_not_cost_the_save_in_progress(tmp_path, expected):
    folder = tmp_path / "run"
    with Run(folder, 2, environment=SLOW) as run:
        run.until(lambda: run.step() >= 3 and saving_process(run.run) == run.pid("rank 0"))
        kill(run.pid("rank 1"))
        run.until(lambda: run.events("resume"))
        assert run.events("resume")[0]["at"] == 3, run.text()
        os.killpg(run.process.pid, signal.SIGTERM)
        run.ends(85)
    assert finish(folder, 1) == expected


def test_a_kill_in_a_save_that_training_does_not_wait_for(tmp_path, expected):
    folder = tmp_path / "run"
    with Run(folder, 2, environment={"FAULT_SAVE": "2"}) as run:
        # It waits for the save of step 3 before it begins that of step 6.
        run.until(lambda: run.run.pointed("last") == 3 and saving_process(run.run) and run.step() >= 8)
        for kind in ("launcher", "rank 0", "rank 1"):
            kill(run.pid(kind))
        run.gone()
        assert run.run.pointed("last") == 3 and checkpoint.damage(run.run.step_directory(3)) is None
        assert list(run.run.checkpoints.glob(".step-000000006.*.tmp"))
    assert finish(folder, 3) == expected


@pytest.mark.parametrize("kind", ["launcher", "rank 1"])
def test_a_request_waits_for_the_save_in_progress_and_its_own(tmp_path, expected, kind):
    folder = tmp_path / "run"
    with Run(folder, 2, environment={"FAULT_SAVE": "1", "FAULT_SLEEP": "0.1"}) as run:
        run.until(lambda: saving_process(run.run) and run.step() >= 4)
        assert run.run.pointed("last") is None
        kill(run.pid(kind), signal.SIGTERM)
        run.ends(85)
        assert run.run.steps() == [3, run.step()] and run.run.pointed("last") == run.step() < 7
        assert all(checkpoint.damage(run.run.step_directory(step)) is None for step in run.run.steps())
        assert not [*folder.rglob("*.tmp"), *folder.glob(".saving")]
    assert finish(folder, 1) == expected


def test_a_second_request_does_not_wait_for_a_save(tmp_path):
    with Run(tmp_path / "run", 2, environment={"FAULT_SAVE": "600"}) as run:
        run.until(lambda: saving_process(run.run), 90)
        kill(run.pid("rank 1"))
        time.sleep(NOTICE + 1)
        assert run.process.poll() is None, "it waits for the save"
        for _ in range(2):
            os.killpg(run.process.pid, signal.SIGINT)
            time.sleep(0.5)
        run.ends(130)
