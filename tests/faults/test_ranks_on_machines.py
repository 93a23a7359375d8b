"""Ranks that a launcher starts on machines whose own names lead to 127.0.1.1, with a disk each."""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from harness_for_faults import HERE, RECIPE, outcome

from rankless.runs import journal
from rankless.runs.directory import RunDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "machines"))
from rig import Rig, why_not

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "a rig can be made"),
]


def variables(rank: int) -> dict[str, str]:
    """What MPICH's launcher sets for the only rank of a machine; the user names rank 0's machine."""
    machine = {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1", "MASTER_ADDR": "h1", "MASTER_PORT": "29511"}
    return {"PMI_RANK": str(rank), "PMI_SIZE": "2", **machine}


def started(rig: Rig, *words: str) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "rankless", "train", *words, "--run", "run"]
    return [
        rig.start(
            f"h{rank + 1}",
            command,
            env=variables(rank),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]


def ended(ranks: list[subprocess.Popen[str]]) -> tuple[list[int], list[str]]:
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    return [rank.returncode for rank in ranks], printed


def listening(rig: Rig, name: str) -> set[str]:
    """The addresses at which a machine takes connections, besides its SSH server's."""
    found = set()
    for line in Path(f"/proc/{rig.pid(name)}/net/tcp").read_text().splitlines()[1:]:
        address, port = line.split()[1].split(":")
        if line.split()[3] == "0A" and int(port, 16) != 22:
            found.add(str(ipaddress.ip_address(int.from_bytes(bytes.fromhex(address), sys.byteorder))))
    return found


def steps(run: RunDirectory) -> int:
    try:
        return max((journal.step_of(entry) for entry in journal.read(run.journal)), default=0)
    except OSError:
        return 0


def test_two_machines_are_one_training_and_each_has_all_of_it(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH", ""))))
    with Rig(tmp_path / "rig", 2, {"RANKLESS_CPU": "1", "PYTHONPATH": path, "FAULT_SLEEP": "0.05"}) as rig:
        runs = [RunDirectory(rig.files(name) / "run") for name in ("h1", "h2")]
        for name in ("h1", "h2"):
            rig.files(name).mkdir(parents=True, exist_ok=True)
            (rig.files(name) / "small.yaml").write_text(RECIPE)
        ranks = started(rig, "small.yaml")
        until = time.monotonic() + 100
        while steps(runs[0]) < 2:
            assert time.monotonic() < until and not any(rank.poll() for rank in ranks), ended(ranks)
            time.sleep(0.02)
        assert [listening(rig, name) for name in ("h1", "h2")] == [{rig.address("h1")}, {rig.address("h2")}]
        os.kill(
            next(pid for pid, words in rig.processes("h2").items() if "train" in str(words)), signal.SIGUSR1
        )
        codes, printed = ended(ranks)
        assert codes == [85, 85], printed
        assert printed[0].startswith("training in") and printed[1] == ""
        ranks = started(rig, "--resume")
        codes, printed = ended(ranks)
        assert codes == [0, 0], printed
        assert printed[1] == ""
        assert [outcome(run.path) for run in runs] == [expected] * 2
