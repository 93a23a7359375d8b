"""A real Slurm of two nodes: submitted, preempted, requeued, finished; and canceled."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rankless.runs.directory import RunDirectory
from support.faults.harness import FINDS_TASK, RECIPE, entries, outcome
from support.machines.slurm_rig import Slurm, missing

pytestmark = [
    pytest.mark.processes,
    pytest.mark.xdist_group("slurm"),  # one at a time on a machine
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is a Slurm"),
]
SLOW = {"FAULT_SLEEP": "0.2"}


@pytest.fixture(scope="module")
def slurm():
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, Slurm(Path(folder)) as cluster:
        yield cluster


def submitted(slurm: Slurm, folder: Path, *words: str, **more: str) -> str:
    """The number of a job of two ranks on two nodes."""
    (folder / "small.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "rankless", "submit", "slurm", "small.yaml", "--nodes", "2"]
    done = subprocess.run(
        [*command, "--gres", "none", "--out", "run", *words],
        cwd=folder,
        env={**os.environ, **slurm.variables, "RANKLESS_CPU": "1", "PYTHONPATH": FINDS_TASK, **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()[-1].partition("job ")[2].partition(" ")[0]


def steps(folder: Path) -> int:
    return sum("step" in entry for entry in entries(RunDirectory(folder / "run")))


def resumed_at(folder: Path) -> list[int]:
    found = entries(RunDirectory(folder / "run"))
    return [entry["at"] for entry in found if entry.get("event") == "resume"]


def test_a_job_that_is_preempted_goes_on_at_the_exact_step(slurm, tmp_path, expected):
    job = submitted(slurm, tmp_path, "--partition", "low", **SLOW)
    slurm.until(lambda: steps(tmp_path) >= 2, 120)
    urgent = ["sbatch", "--parsable", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null"]
    slurm.ask(*urgent, "--wrap=sleep 1")
    slurm.until(lambda: slurm.state(job) == "PENDING")
    saved = RunDirectory(tmp_path / "run").pointed("last")
    assert saved == steps(tmp_path)
    slurm.until(lambda: slurm.state(job) == "COMPLETED", 200)
    assert resumed_at(tmp_path) == [saved]
    assert outcome(tmp_path / "run") == expected


def test_a_rank_that_aborts_is_started_again_in_the_same_allocation(slurm, tmp_path, expected):
    job = submitted(slurm, tmp_path, FAULT_ABORT="30")
    slurm.until(lambda: slurm.state(job) == "COMPLETED", 200)
    assert " Restarts=0 " in slurm.ask("scontrol", "--oneliner", "show", "job", job)
    assert len(resumed_at(tmp_path)) == 1
    assert outcome(tmp_path / "run") == expected


def test_a_job_that_is_canceled_saves_and_stays_canceled(slurm, tmp_path):
    job = submitted(slurm, tmp_path, **SLOW)
    slurm.until(lambda: steps(tmp_path) >= 2, 120)
    slurm.ask("scancel", job)
    slurm.until(lambda: not slurm.ask("squeue", "-h", "-j", job))
    shown = slurm.ask("scontrol", "--oneliner", "show", "job", job)
    assert "JobState=CANCELLED" in shown
    assert " Restarts=0 " in shown
    assert RunDirectory(tmp_path / "run").pointed("last") == steps(tmp_path)
