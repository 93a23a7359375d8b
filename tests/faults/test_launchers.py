"""Ranks that a cluster's launcher has started are one training, whatever happens to them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rankless.hardware.forking import ForkedProcess
from rankless.hardware.network import public_address
from rankless.runs.directory import RunDirectory
from support.faults.harness import FINDS_TASK, HERE, RECIPE, entries, outcome, reached
from support.faults.listening import listening
from support.process_server import SERVER
from support.waiting import until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
TRAIN = ("-m", "rankless", "train")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
SLOW = {"FAULT_SLEEP": "0.05"}


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "small.yaml").write_text(RECIPE)
    return "small.yaml"


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Our own variables and nothing of a launcher's that runs the tests."""
    return {**os.environ, "RANKLESS_CPU": "1", "PYTHONPATH": FINDS_TASK, **more}


def launched(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """What a launcher that is a module of Python's has done in a folder."""
    return SERVER.run(*words, cwd=folder, seconds=200, **environment(more))


class Ranks:
    """Processes that a cluster's launcher would start, with variables and words for each, or words for all.

    ``last`` is a script that starts the last one, as on another machine.
    """

    def __init__(
        self,
        folder: Path,
        variables: Sequence[Mapping[str, str]],
        *words: Sequence[str],
        last: Sequence[str] = (),
    ) -> None:
        self.processes: list[ForkedProcess | subprocess.Popen[bytes]] = []
        self.outputs = [tempfile.TemporaryFile("w+") for _ in variables]  # noqa: SIM115
        for rank, (more, output) in enumerate(zip(variables, self.outputs, strict=True)):
            prefix = last if rank == len(variables) - 1 else ()
            command = [*prefix, *TRAIN, *words[rank if len(words) > 1 else 0]]
            streams = {"output": output, "errors": output}
            self.processes.append(SERVER.start(command, environment=environment(more), cwd=folder, **streams))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        for output in self.outputs:
            output.close()

    def ends(self, *codes: int) -> list[str]:
        """Check the exit codes; what was printed, rank by rank."""
        found = [process.wait(timeout=120) for process in self.processes]
        assert found == [*codes], self.printed()
        return self.printed()

    def printed(self) -> list[str]:
        for output in self.outputs:
            output.seek(0)
        return [output.read() for output in self.outputs]

    def until(self, condition: Callable[[], Any]) -> None:
        until(
            condition, 120, over=lambda: any(p.poll() is not None for p in self.processes), said=self.printed
        )


def srun(*sizes: int, **more: str) -> list[dict[str, str]]:
    """The variables of srun's tasks, so many on each node."""
    nodes = [(node, local) for node, size in enumerate(sizes) for local in range(size)]
    count, job = str(len(nodes)), {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", **more}
    step = {"NUM_TASKS": count, "NODELIST": f"n[1-{len(sizes)}]", "TASKS_PER_NODE": ",".join(map(str, sizes))}
    common = {"SLURM_NTASKS": count, **{f"SLURM_STEP_{name}": value for name, value in step.items()}, **job}
    return [
        {**common, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)}
        for rank, (node, local) in enumerate(nodes)
    ]


def mpirun(size: int) -> list[dict[str, str]]:
    numbers = [{"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size} for rank in range(size)]
    each = [{f"OMPI_COMM_WORLD_{name}": str(value) for name, value in one.items()} for one in numbers]
    return [{**one, "PMIX_NAMESPACE": f"prterun-test-{os.getpid()}@1"} for one in each]


def mpiexec_on_machines(size: int, address: str) -> list[dict[str, str]]:
    """Hydra's variables, each rank on a machine of its own."""
    where = {"MASTER_ADDR": address, "MASTER_PORT": free_port()}
    local = {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1", **where}
    return [{"PMI_RANK": str(rank), "PMI_SIZE": str(size), **local} for rank in range(size)]


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return str(held.getsockname()[1])


def events(run: RunDirectory, name: str) -> list[int]:
    return [entry["at"] for entry in entries(run) if entry.get("event") == name]


def test_torchruns_on_two_machines_are_one_training(tmp_path, recipe, expected):
    """Its ranks are new interpreters; in the other tests they are forked."""
    train = (*TRAIN, recipe, "--out", "run")
    where = ("--master-addr", "127.0.0.1", "--master-port", free_port())

    def agent(node: int) -> subprocess.CompletedProcess[str]:
        words = (*TORCHRUN[:-1], "1", "--nnodes", "2", "--node-rank", str(node))
        return launched(tmp_path, *words, *where, *train, PYTHON_EXEC=sys.executable)

    with ThreadPoolExecutor(2) as both:
        agents = [*both.map(agent, range(2))]
    assert [agent.returncode for agent in agents] == [0, 0], agents
    assert outcome(tmp_path / "run") == expected
    assert agents[1].stdout == "", "only rank 0 prints"


def test_torchrun_restarts_go_on_where_they_were(tmp_path, recipe, expected):
    """Each rank computes 40 micro-batches; one that aborts in its thirtieth needs a second start."""
    restarts = ("--standalone", "--max-restarts", "3")
    done = launched(tmp_path, *TORCHRUN, *restarts, *TRAIN, recipe, FAULT_ABORT="30")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["small"], "the second start found it"
    run = RunDirectory(tmp_path / "runs" / "small")
    assert done.stdout.count("training in runs/small on 2 processes") == 1
    assert done.stdout.count("run directory:") == 1
    assert sorted(path.name for path in run.logs.iterdir()) == ["rank-0.log", "rank-1.log"]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["runs"]
    assert events(run, "start") == [0]
    assert [at > 0 for at in events(run, "resume")] == [True]
    assert outcome(run.path) == expected


def test_a_slurm_job_is_stopped_and_requeued(tmp_path, recipe, expected):
    run = RunDirectory(tmp_path / "runs" / f"small-{os.getpid()}")
    with Ranks(tmp_path, srun(2, **SLOW), [recipe]) as ranks:
        ranks.until(lambda: reached(run) >= 2)
        names = [Path(f"/proc/{process.pid}/comm").read_text() for process in ranks.processes]
        assert names == ["rank-0\n", "rank-1\n"], "Slurm's linuxproc cannot signal one with a space"
        ranks.processes[1].send_signal(signal.SIGUSR1)
        printed = ranks.ends(85, 85)
    assert "stopped by SIGUSR1; saved after step" in printed[0]
    assert printed[1] == ""
    saved = run.pointed("last")
    assert saved == reached(run)
    with Ranks(tmp_path, srun(3, SLURM_RESTART_COUNT="1"), [recipe]) as ranks:
        ranks.ends(0, 0, 0)
    assert events(run, "resume") == [saved]
    assert outcome(run.path) == expected
    starts = json.loads(run.environment.read_text())
    assert [(one["launcher"], one["job"]) for one in starts] == [("Slurm", str(os.getpid()))] * 2
    assert [one["restart"] for one in starts] == [0, 1]


@pytest.fixture
def disks(tmp_path):
    """Two folders, and what stands before a command for which the first is the second, as on its own disk."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces need root")
    shared, own = tmp_path / "disk", tmp_path / "other"
    for folder in (shared, own):
        folder.mkdir()
    return shared, own, [str(HERE / "prepared.py"), "disk", str(shared), str(own)]


def test_a_requeued_job_goes_on_when_the_machine_of_rank_0_was_lost(tmp_path, disks, recipe, expected):
    shared, own, other = disks
    run, words = RunDirectory(shared / "run"), [recipe, "--run", str(shared / "run")]
    variables = srun(1, 1, MASTER_ADDR="127.0.0.1", **SLOW)
    with Ranks(tmp_path, variables, words, last=other) as ranks:
        ranks.until(lambda: reached(run) >= 2)
        ranks.processes[1].send_signal(signal.SIGINT)
        printed = ranks.ends(130, 130)
    assert "stopped by SIGINT; saved after step" in printed[0]
    saved = run.pointed("last")
    assert RunDirectory(own / "run").pointed("last") == saved
    shutil.rmtree(run.path)
    with Ranks(tmp_path, mpiexec_on_machines(2, "127.0.0.1"), words, last=other) as ranks:
        printed = ranks.ends(2, 2)
    assert "run: already contains a run on" in printed[0], "it is another job's"
    assert not run.path.exists()
    variables = srun(1, 1, MASTER_ADDR="127.0.0.1", SLURM_RESTART_COUNT="1")
    with Ranks(tmp_path, variables, words, last=other) as ranks:
        printed = ranks.ends(0, 0)
    assert f"resuming after step {saved}" in printed[0]
    assert outcome(run.path) == expected


def test_resume_needs_no_recipe_where_another_machine_has_the_run(tmp_path, disks, recipe, expected):
    shared, own, other = disks
    run, words = RunDirectory(shared / "run"), ["--resume", "--run", str(shared / "run")]
    variables = srun(1, 1, MASTER_ADDR="127.0.0.1")
    with Ranks(tmp_path, variables, words, last=other) as ranks:
        printed = ranks.ends(2, 2)
    assert "nothing to resume (no recipe.yaml and no checkpoint)" in printed[0]
    with Ranks(tmp_path, srun(2, **SLOW), [recipe, "--run", str(own / "run")]) as ranks:
        ranks.until(lambda: reached(RunDirectory(own / "run")) >= 2)
        ranks.processes[0].send_signal(signal.SIGTERM)
        ranks.ends(85, 85)
    with Ranks(tmp_path, variables, words, last=other) as ranks:
        ranks.ends(0, 0)
    assert outcome(run.path) == expected == outcome(own / "run")


def test_another_job_does_not_go_on_unasked(tmp_path, recipe, expected):
    """Open MPI has no name for a job that would be the same after a restart."""
    with Ranks(tmp_path, mpirun(2), [recipe, "--run", "run"]) as ranks:
        ranks.ends(0, 0)
    assert outcome(tmp_path / "run") == expected
    with Ranks(tmp_path, mpirun(2), [recipe, "--run", "run"]) as ranks:
        printed = ranks.ends(2, 2)
    last = printed[0].splitlines()[-1]  # PyTorch 2.9's gloo says before that it is connected
    assert last.startswith("error: run: already contains a run (last step 20); continue it with --resume")
    assert printed[1] == ""


def test_ranks_on_several_machines_listen_on_one_interface(tmp_path, recipe, expected):
    address, run = public_address() or "127.0.0.1", RunDirectory(tmp_path / "run")
    variables = [{**SLOW, **one} for one in mpiexec_on_machines(2, address)]
    with Ranks(tmp_path, variables, [recipe, "--run", "run"]) as ranks:
        ranks.until(lambda: reached(run) >= 1)
        found = listening(process.pid for process in ranks.processes)
        ranks.ends(0, 0)
    assert {one.address for one in found} == {address}, "the store and the ranks' own"
    assert outcome(run.path) == expected


@pytest.mark.parametrize(
    ("words", "bug", "code", "problems"),
    [
        (["small.yaml", "seed=4", "optim.lr=0.1"], "", 2, [
            "seed: differs between the ranks: 3 on rank 0, 4 on rank 1; use the same recipe",
            "optim.lr: differs between the ranks: 0.05 on rank 0, 0.1 on rank 1; use",
        ]),
        (["nowhere.yaml"], "", 2, ["rank 1: 'nowhere.yaml': no such file, folder or shipped recipe"]),
        (["small.yaml"], "loss 9", 1, ["the task small_task_for_faults:Small failed"]),
    ],
)  # fmt: skip
def test_an_error_of_one_rank_is_printed_once_and_ends_all(tmp_path, recipe, words, bug, code, problems):
    variables = srun(2)
    variables[1]["FAULT_BUG"] = bug
    began = time.monotonic()
    with Ranks(tmp_path, variables, [recipe, "--run", "run"], [*words, "--run", "run"]) as ranks:
        printed = ranks.ends(code, code)
    assert printed[1] == "" and "Traceback" not in printed[0]
    lines = [line for line in printed[0].splitlines() if line.startswith("error: ")]
    assert len(lines) == len(problems), printed
    assert all(line.startswith(f"error: {problem}") for line, problem in zip(lines, problems, strict=True))
    assert (tmp_path / "run").exists() == (code == 1), "a run that did not begin leaves nothing"
    assert time.monotonic() - began < 100


def test_a_rank_that_is_killed_ends_the_others_with_a_sentence(tmp_path, recipe):
    run = RunDirectory(tmp_path / "run")
    with Ranks(tmp_path, srun(2, **SLOW), [recipe, "--run", "run"]) as ranks:
        ranks.until(lambda: reached(run) >= 4)
        ranks.processes[1].send_signal(signal.SIGKILL)
        printed = ranks.ends(75, -signal.SIGKILL)
    assert "error: no message from rank 1: " in printed[0]
    assert "rankless train --resume --run run" in printed[0]
    assert "Traceback" not in printed[0]
