"""A run is closed to everyone who can reach the machine, and ranks meet whoever launched them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from rankless.hardware.forking import ForkedProcess
from rankless.launch.job import Job, read_notes, write_job
from rankless.recipe.load import load, to_json
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from support.faults.harness import HERE, RECIPE, Run, outcome
from support.faults.listening import Socket, listening
from support.process_server import SERVER
from support.waiting import until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


def test_the_list_of_sockets_finds_what_is_open():
    """The other tests see nothing where there is nothing; here is something."""
    with contextlib.ExitStack() as stack:
        outside = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        inside = stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(("0.0.0.0", 0))
        found = listening([os.getpid()])
        assert Socket("tcp", "0.0.0.0", outside.getsockname()[1]) in found
        assert Socket("tcp6", "::1", inside.getsockname()[1]) in found
        assert Socket("udp", "0.0.0.0", datagrams.getsockname()[1]) in found
        # of two protocols, for their ports may be equal
        is_open = {(one.kind, one.port) for one in found if one.is_open}
        assert ("tcp", outside.getsockname()[1]) in is_open
        assert ("tcp6", inside.getsockname()[1]) not in is_open


def answers_as_a_store(one: Socket) -> bool:
    try:
        dist.TCPStore(one.address, one.port, is_master=False, timeout=timedelta(seconds=2))
    except (RuntimeError, ValueError):
        return False
    return True


def test_no_socket_of_a_run_is_open_to_the_network_or_takes_objects(tmp_path, expected):
    folder = tmp_path / "run"
    with Run(folder, 2, "workers=1", environment={"FAULT_SLEEP": "0.2"}) as run:
        run.until(lambda: run.step() >= 1, seconds=120)
        found = listening(process.pid for process in run.processes())
        assert found, "gloo's own"
        assert not [one for one in found if one.is_open]
        with ThreadPoolExecutor(len(found)) as threads:
            assert not any(threads.map(answers_as_a_store, found)), "whose keys could be replaced"
        run.ends(0, noisy=True)
    assert outcome(folder) == expected, "and a stranger's words changed nothing"


@contextlib.contextmanager
def ranks(
    job: Path, store: dist.TCPStore, counts: list[int]
) -> Iterator[list[ForkedProcess | subprocess.Popen[bytes]]]:
    """Ranks as the agents of as many machines start them, each with its own count of restarts."""
    with Path(os.devnull).open("wb") as output:
        processes = [
            SERVER.start(
                ["-m", "rankless.launch.worker", str(job)],
                cwd=HERE,
                output=output,
                environment={
                    **os.environ,
                    "RANKLESS_CPU": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                    "RANK": str(rank),
                    "WORLD_SIZE": str(len(counts)),
                    "LOCAL_RANK": "0",
                    "LOCAL_WORLD_SIZE": "1",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(store.port),
                    "TORCHELASTIC_RUN_ID": "tested",
                    "TORCHELASTIC_RESTART_COUNT": str(count),
                    "TORCHELASTIC_USE_AGENT_STORE": "True",
                    "FAULT_SLEEP": "0.05",
                },
            )
            for rank, count in enumerate(counts)
        ]
    try:
        yield processes
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


def test_agents_that_count_restarts_differently_meet_and_resume(tmp_path, expected):
    text, run = tmp_path / "small.yaml", RunDirectory(tmp_path / "run")
    text.write_text(RECIPE)
    job = write_job(Job("train", to_json(load(text)), str(run.logs), run=str(run.path)), tmp_path)
    run.path.mkdir()
    agents = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ranks(job, agents, [0, 0, 0]) as first:
        until(lambda: (run.pointed("last") or 0) >= 3, 120, over=lambda: any(one.poll() for one in first))
    with ranks(job, agents, [0, 2]) as second:
        assert [process.wait(120) for process in second] == [0, 0]
    assert [entry["at"] for entry in journal.read(run.journal) if entry.get("event") == "resume"] != []
    assert outcome(run.path) == expected
    assert read_notes(job)[0]["finished"]
