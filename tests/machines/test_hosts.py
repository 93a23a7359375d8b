"""``rankless train --hosts``: several machines over SSH give the bits of one process, whatever is lost.

Each start costs seconds, so each test is one run to which several things happen.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from support.machines.harness import LONG, HostsRun
from support.machines.rig import NETWORK, Rig

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


def on(rig: Rig, host: str, *command: str) -> None:
    assert rig.start(host, command).wait(20) == 0, command


def images(folder: Path) -> None:
    for number in range(24):
        path = folder / ("val" if number < 8 else "train") / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        color = (255 * (number % 2), 10 * number, 40)
        Image.new("RGB", (40, 40), color).save(path)


def test_hosts_that_share_nothing_prove_the_promise(rig, tmp_path):
    """Unequal devices, own names at 127.0.1.1, a path of the data on each, clocks a minute apart."""
    images(tmp_path / "data")
    hosts = {"h1": "x", "h2": "y", "h3": "z"}
    for host, name in hosts.items():
        shutil.copytree(tmp_path / "data", rig.files(host) / name)
    if "h2" in rig.own:
        on(rig, "h2", sys.executable, "-c", f"import time; exit(not 50 < time.time() - {time.time()} < 110)")
    spec = ",".join(f"{h}:{2 if h == 'h2' else 1}:{rig.work}/{name}" for h, name in hosts.items())
    words = ("digits-classify", "data.root=nowhere", "batch.images=8", "batch.micro=2", "--steps", "3")
    listening: set[tuple[str, int]] = set()
    with HostsRun(rig, "none", spec, *words, verb="verify") as run:
        while run.process.poll() is None:
            for host in hosts:
                listening |= {(a, port) for a, port in rig.listening(host) if port != 22}
            time.sleep(0.2)
        said = run.ends(0)
    assert "the same bits in every tensor after each step (3), and the same scores" in said
    for host in hosts:
        assert not list((rig.files(host) / "runs").glob(".verify*"))
    ours = {f"{NETWORK}.{number}" for number in (1, 2, 3)} | {"127.0.0.1"}  # 127.0.0.1: one host alone
    assert listening
    assert {address for address, _ in listening} <= ours


def test_what_is_lost_is_left_out_and_taken_back(rig, alone):
    """A cable out for 5 s, a killed rank, the power of rank 0's machine, a cable that is out for good."""

    def lost(what: str, warning: str) -> None:
        began = time.monotonic()
        run.until(lambda: run.text().count(warning) > before.count(warning))
        noticed = time.monotonic() - began
        run.steps_on()
        print(f"{what}: noticed after {noticed:.1f} s, next step after {time.monotonic() - began:.1f} s")

    with HostsRun(rig, "lost", "h1:1,h2:1,h3:1", "small.yaml", *LONG) as run:
        run.until(lambda: run.step() >= 4)
        before = run.text()  # with warnings of the clock that the rig gives h2
        rig.cut("h2")
        time.sleep(5)
        rig.heal("h2")
        run.steps_on()
        assert run.text().count("warning") == before.count("warning")
        before = run.text()
        os.kill(run.processes("h2")["rank 1"], signal.SIGKILL)
        killed = "rank 1 was killed by SIGKILL; restarting from the newest checkpoint on h1, h2, h3"
        lost("rank killed", killed)
        before = run.text()
        rig.power_off("h1")
        try:
            lost("rank 0's machine without power", "lost h1")
        finally:
            rig.power_on("h1")
        run.until(lambda: "h1 is back" in run.text())
        run.steps_on()
        before = run.text()
        rig.cut("h3")
        try:
            lost("cable out", "lost h3")
        finally:
            rig.heal("h3")
        said = run.ends(0)
        assert run.outcome("h1") == run.outcome("h2") == alone
        assert "h3 is back" not in said or run.outcome("h3") == alone


def test_a_start_that_fails_or_is_stopped_leaves_nothing(rig):
    mine = rig.files("h2") / "runs" / "mine" / "journal.jsonl"
    mine.parent.mkdir(parents=True)
    mine.write_text("my diary")
    with HostsRun(rig, "mine", "h1:1,h2:1") as run:
        said = run.ends(2)
    assert "h2: runs/mine: is not a run directory and contains 'journal.jsonl'; expected a run" in said
    assert mine.read_text() == "my diary"
    assert not (rig.files("h1") / run.folder).exists()
    with HostsRun(rig, "early", "h1:1,h2:1") as run:
        run.until(lambda: "rankless host" in run.processes("h1"))
        os.kill(run.coordinator(), signal.SIGINT)
        assert run.ends(130) == "connecting to h1, h2\nstopped by SIGINT before the training began\n"
    assert not [host for host in ("h1", "h2") if (rig.files(host) / run.folder).exists()]


@pytest.mark.parametrize(
    ("ssh", "more", "said", "fix"),
    [
        ("-o PubkeyAuthentication=no", (), "Permission denied", "ssh-copy-id h1"),
        (
            "-o StrictHostKeyChecking=yes",
            (),
            "Host key verification failed.",
            "ssh h1 once to check and accept its key",
        ),
        ("", ("--python", "/no/python"), "/no/python: No such file", "--python PATH"),
    ],
)
def test_hosts_that_cannot_be_used_name_what_to_do(rig, ssh, more, said, fix):
    with HostsRun(rig, "unused", "h1,h2", *more, ssh=ssh) as run:
        _, first, *others = filter(None, run.ends(2).splitlines())  # the first line names the hosts
    assert "h1: cannot be used (" in first and "h2: cannot be used (" in str(others)
    assert said in first and fix in first


def test_a_run_goes_on_after_its_client_was_killed_and_after_ctrl_c(rig, alone):
    with HostsRun(rig, "on", "h1:1,h2:2", "small.yaml", *LONG) as run:
        run.until(lambda: run.step() >= 5)
        os.kill(run.coordinator(), signal.SIGKILL)
        run.process.wait()
        print(f"nothing left {run.gone(40):.1f} s after the client was killed")
    with HostsRun(rig, "on", "h1:1,h2:2", "small.yaml", *LONG, "--resume") as run:
        before = run.step()
        run.until(lambda: run.step() >= before + 3)
        os.kill(run.coordinator(), signal.SIGINT)
        said = run.ends(130)
        assert "stopped by SIGINT; saved after step" in said
        assert f"--hosts h1:1,h2:2 --ssh 'ssh -F {rig.config}'" in said
    with HostsRun(rig, "on", "h3:1,h2:1", "small.yaml", *LONG, "--resume") as run:
        run.ends(0)  # h3 has nothing of it
        assert run.outcome("h2") == run.outcome("h3") == alone


def test_hosts_may_share_the_run_directory(rig):
    """Their ranks have jobs of their own in it; one host used to take away another's."""
    shared = rig.folder / "shared" / "run"
    with HostsRun(rig, str(shared), "h1:1,h3:1", "small.yaml", "epochs=1") as run:
        assert "warning" not in run.ends(0)
    assert not [*shared.glob(".job*")]
