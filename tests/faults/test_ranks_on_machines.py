"""Ranks that a launcher starts on machines whose own names lead to 127.0.1.1, with a disk each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from rankless.runs.directory import RunDirectory
from support.faults.harness import FINDS_TASK, RECIPE, outcome, reached
from support.machines.rig import Rig, why_not
from support.waiting import until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "a rig can be made"),
]
NAMES = ("h1", "h2")
# What MPICH's launcher sets for the only rank of a machine; the user names rank 0's machine.
MACHINE = {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1", "MASTER_ADDR": "h1", "MASTER_PORT": "29511"}


def started(rig: Rig, *words: str) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "rankless", "train", *words, "--run", "run"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [
        rig.start(name, command, env={"PMI_RANK": str(rank), "PMI_SIZE": "2", **MACHINE}, **streams)
        for rank, name in enumerate(NAMES)
    ]


def ended(ranks: list[subprocess.Popen[str]], code: int) -> list[str]:
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [code, code], printed
    return printed


def test_two_machines_are_one_training_and_each_has_all_of_it(tmp_path, expected):
    environment = {"RANKLESS_CPU": "1", "PYTHONPATH": FINDS_TASK, "FAULT_SLEEP": "0.05"}
    with Rig(tmp_path / "rig", 2, environment) as rig:
        runs = [RunDirectory(rig.files(name) / "run") for name in NAMES]
        for name in NAMES:
            (rig.files(name) / "small.yaml").write_text(RECIPE)
        ranks = started(rig, "small.yaml")
        until(lambda: reached(runs[0]) >= 2, 100, over=lambda: any(rank.poll() for rank in ranks))
        for name in NAMES:
            assert {address for address, port in rig.listening(name) if port != 22} == {rig.address(name)}
        processes = rig.processes("h2").items()
        os.kill(next(pid for pid, words in processes if "train" in str(words)), signal.SIGUSR1)
        printed = ended(ranks, 85)
        assert printed[0].startswith("training in") and printed[1] == ""
        assert ended(started(rig, "--resume"), 0)[1] == ""
        assert [outcome(run.path) for run in runs] == [expected] * 2
