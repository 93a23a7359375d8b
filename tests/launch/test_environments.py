"""Which rank a process is, from what real launchers set."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless import cli
from rankless.errors import UserError
from rankless.launch import environments


def env(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


TORCHRUN = env("""
    LOCAL_RANK=1 RANK=3 GROUP_RANK=1 ROLE_RANK=3 LOCAL_WORLD_SIZE=2 WORLD_SIZE=4 GROUP_WORLD_SIZE=2
    ROLE_WORLD_SIZE=4 MASTER_ADDR=node1.example MASTER_PORT=29500 TORCHELASTIC_RESTART_COUNT=2
    TORCHELASTIC_MAX_RESTARTS=3 TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True
""")
# `srun -N 2 -n 3` of Slurm 22.05, the second task of the first node, without what says nothing about ranks.
SRUN = env("""
    SLURM_JOB_ID=4711 SLURM_JOB_NODELIST=n[1-2] SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 SLURM_LOCALID=1
    SLURM_NODEID=0 SLURM_NODELIST=n[1-2] SLURM_NTASKS=3 SLURM_PROCID=1 SLURM_STEPID=0 SLURM_STEP_ID=0
    SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=2,1
    SLURM_TASKS_PER_NODE=2,1 SLURMD_NODENAME=n1
""")
# The shell of `sbatch -N 2 -n 2`.
SBATCH = env("""
    SLURM_JOB_ID=2 SLURM_JOB_NODELIST=n[1-2] SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NODELIST=n[1-2]
    SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_TASKS_PER_NODE=1(x2)
""")
# `srun --pty bash`.
PTY = SRUN | env("SLURM_LOCALID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1")
PTY["SLURM_PTY_PORT"] = "34891"
MPIRUN = env("""
    OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4
    OMPI_COMM_WORLD_NODE_RANK=2 OMPI_UNIVERSE_SIZE=4 PMIX_NAMESPACE=prterun-host-1234@1 PMIX_RANK=2
""")
HYDRA = env("PMI_RANK=1 PMI_SIZE=2 PMI_FD=9 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2")
RAY = env("""
    RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 NODE_RANK=0 MASTER_ADDR=10.0.0.4 MASTER_PORT=51321
""")
ALONE = env("MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1")  # on its machine
PRUN = env("PMIX_RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2")
PYTORCHJOB = env("RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456")


@pytest.fixture(autouse=True)
def no_slurm_here(monkeypatch):
    monkeypatch.setenv("PATH", "")  # and so no scontrol


def standard(variables: dict[str, str]) -> list[str | None]:
    exported: dict[str, str] = {}
    environments.detect(variables).export(exported)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    return [exported.get(name) for name in names]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCHRUN, ["3", "4", "1", "2", "node1.example"]),
        (SRUN, ["1", "3", "1", "2", "n1"]),
        ({**SRUN, "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}, ["1", "3", "0", "1", "n1"]),
        (MPIRUN, ["2", "4", "2", "4", "127.0.0.1"]),
        (HYDRA, ["1", "2", "1", "2", "127.0.0.1"]),
        ({**HYDRA, **ALONE, "MASTER_ADDR": "a"}, ["1", "2", "0", "1", "a"]),
        (RAY, ["0", "2", "0", "1", "10.0.0.4"]),
        (PYTORCHJOB, ["1", "2", "0", "1", "job-master-0"]),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ["0", "1", "0", "1", None]),
        # A launcher within a launcher: the inner one counts.
        ({**SRUN, **TORCHRUN}, ["3", "4", "1", "2", "node1.example"]),
        ({**SRUN, **MPIRUN}, ["2", "4", "2", "4", "127.0.0.1"]),
        ({**SRUN, **HYDRA}, ["1", "2", "1", "2", "127.0.0.1"]),
        ({**SRUN, "PMI_RANK": "1", "PMI_SIZE": "3"}, ["1", "3", "1", "2", "n1"]),  # srun --mpi=pmi2
        # A script around srun that sets what the PyTorch tutorials say.
        ({**SRUN, **PYTORCHJOB, "WORLD_SIZE": "3"}, ["1", "3", "1", "2", "job-master-0"]),
        ({**SRUN, "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1"}, ["1", "3", "1", "2", "10.0.0.1"]),
        (PRUN, ["1", "2", "1", "2", "127.0.0.1"]),
    ],
)
def test_every_launcher_is_read(variables, expected):
    assert standard(variables) == expected


@pytest.mark.parametrize(
    "variables",
    [
        {},
        SBATCH,
        {**SBATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "2"},  # salloc's shell is a step
        PTY,
        {**PTY, "SLURM_STEP_NUM_TASKS": "2"},
        {**PTY, "PMIX_RANK": "0"},
        {**PTY, "PMI_RANK": "0", "PMI_SIZE": "1"},
        {**MPIRUN, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"WORLD_SIZE": "2", "MASTER_ADDR": "n1"},
        {"RANK": "1"},
    ],
)
def test_what_is_no_rank_is_taken_for_none(variables):
    assert environments.detect(variables) is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, r"RANK is 'x' in the environment .*; expected a whole number"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, r"RANK is '-1'"),
        ({**PYTORCHJOB, "RANK": "2"}, r"the rank to 2, but the number of ranks is 2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, r"MASTER_ADDR and MASTER_PORT: not set.*ranks with torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, r"^MASTER_PORT: not set"),
        ({k: v for k, v in MPIRUN.items() if "LOCAL" not in k}, r"OMPI_COMM_WORLD_LOCAL_RANK is not set"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "1"}, r"TASKS_PER_NODE is '2'"),
        # Several machines need an address.
        ({**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, r"several machines.*mpirun -x MASTER_ADDR=HOST"),
        ({**HYDRA, **ALONE}, r"mpiexec -genv MASTER_ADDR HOST"),
        ({**SRUN, "SLURM_STEP_NODELIST": "n[1-"}, r"SLURM_STEP_NODELIST is 'n\[1-'"),
    ],
)
def test_what_makes_no_sense_is_an_error(variables, message):
    with pytest.raises(UserError, match=message):
        standard(variables)


@pytest.mark.processes
def test_the_address_of_a_node_is_its_address_and_not_its_name(tmp_path, monkeypatch):
    command = tmp_path / "scontrol"
    command.write_text('#!/bin/sh\necho "NodeName=$4 Arch=x86_64 NodeAddr=10.1.2.3 NodeHostName=$4"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert standard(SRUN)[-1] == "10.1.2.3"
    command.write_text("#!/bin/sh\nexit 1\n")
    assert standard(SRUN)[-1] == "n1"


def test_ports_are_the_same_on_all_ranks_and_differ_between_jobs():
    def port(variables: dict[str, str]) -> int:
        return environments.detect(variables).port

    first = port(SRUN)
    assert first == port({**SRUN, "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"})
    assert 15_000 <= first < 30_000
    assert len({port({**SRUN, "SLURM_JOB_ID": str(job)}) for job in range(20)}) > 15
    assert port({**SRUN, "MASTER_PORT": "4711"}) == 4711


def test_what_starts_ranks_by_itself_is_no_rank():
    for variables in ({}, SBATCH, PTY, {"RANK": "0", "WORLD_SIZE": "1"}):
        environments.refuse("verify", "run it alone", variables)
    with pytest.raises(UserError, match=r"verify: starts.*one of 3 ranks \(Slurm\); run it alone"):
        environments.refuse("verify", "run it alone", {**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    with pytest.raises(UserError) as raised:
        environments.refuse("verify", "run it alone", SRUN)
    assert raised.value.problems == (), "rank 0 says it"


@pytest.mark.parametrize("verb", [("verify",), ("evaluate", "run"), ("train", "--nothing")])
def test_a_command_line_that_is_wrong_on_all_ranks_is_printed_by_one(verb, monkeypatch, capsys):
    for name, value in PYTORCHJOB.items():
        monkeypatch.setenv(name, value)
    printed = []
    monkeypatch.setattr(cli.time, "sleep", lambda _: None)  # which rank 1 does, for rank 0 to say it
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        assert cli.main(verb) == 2
        printed.append(capsys.readouterr().err)
    assert printed[0].count("error: ") == 1
    assert printed[1] == ""


def test_a_rank_of_ray_goes_with_its_worker():
    environment = environments.detect({**RAY, "RANKLESS_RAY_WORKER": "1"})
    assert (environment.name, environment.leaves_orphans) == ("Ray Train", True)
    assert not environments.detect(RAY).leaves_orphans


def test_a_job_has_one_name_in_all_its_starts():
    assert environments.job(SRUN) == environments.job({**SRUN, "SLURM_RESTART_COUNT": "3"}) == "4711"
    assert environments.job({**SRUN, **TORCHRUN}) == "4711"
    assert environments.job({**SRUN, "RANKLESS_JOB_ID": "mine"}) == "mine"
    assert environments.job(TORCHRUN) == ""
    assert environments.detect({**SRUN, "SLURM_RESTART_COUNT": "3"}).restart == 3


numbers = st.integers(0, 120)
ranges = st.tuples(numbers, numbers).map(sorted).map(tuple) | numbers.map(lambda n: (n, n))
brackets = st.tuples(st.integers(1, 4), st.lists(ranges, min_size=1, max_size=3))
words = st.text("abz-", min_size=1, max_size=3)


@given(st.lists(st.tuples(words, st.lists(st.tuples(brackets, words), max_size=2)), min_size=1, max_size=3))
def test_the_first_host_of_a_list_is_found(parts):
    text, expected = [], []
    for name, groups in parts:
        short, pieces = name, [[name]]
        for (width, spans), word in groups:
            inside = [f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in spans]
            short += f"[{','.join(inside)}]{word}"
            pieces += [[f"{n:0{width}}" for a, b in spans for n in range(a, b + 1)], [word]]
        text.append(short)
        expected += ["".join(one) for one in itertools.product(*pieces)]
    assert environments.first_host(",".join(text)) == expected[0]


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 5)), min_size=1, max_size=5))
def test_tasks_per_node_are_read(repeated):
    text = ",".join(f"{tasks}(x{count})" if count > 1 else str(tasks) for tasks, count in repeated)
    expected = [tasks for tasks, count in repeated for _ in range(count)]
    assert [environments.nth_number(text, index) for index in range(len(expected))] == expected
    with pytest.raises(ValueError, match=r".*"):
        environments.nth_number(text, len(expected))


@given(st.text("n[]0123,- ", max_size=12))
def test_no_list_of_nodes_ends_in_another_error(text):
    with contextlib.suppress(ValueError):
        environments.first_host(text)


@pytest.mark.parametrize("text", ["", ",n1", "n[1", "n]1", "n[]", "n[a-b]", "n[1,]", "n[1--2]"])
def test_a_damaged_list_of_nodes_is_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        environments.first_host(text)
