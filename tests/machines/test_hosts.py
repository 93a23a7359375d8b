"""``rankless train --hosts``: several machines over SSH give the bits of one process, whatever is lost."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from harness_for_machines import HostsRun
from rig import Rig

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("machines")]


def test_two_hosts_with_unequal_devices_give_the_bits_of_one_process(rig: Rig, alone: dict[str, Any]) -> None:
    with HostsRun(rig, "plain", "h1:1,h2:2") as run:
        assert run.wait() == 0, run.text()
        run.gone()
        assert run.outcome("h1") == alone
        assert "3 processes" in run.text()
        assert "Traceback" not in run.text()


def test_a_killed_rank_is_restarted_on_all_hosts(rig: Rig, alone: dict[str, Any]) -> None:
    with HostsRun(rig, "rank", "h1:1,h2:2") as run:
        run.until(lambda: run.step() >= 4)
        os.kill(run.processes("h2")["rank 2"], signal.SIGKILL)
        assert run.wait() == 0, run.text()
        assert "rank 2 was killed by SIGKILL; restarting from the newest checkpoint on h1, h2" in run.text()
        run.gone()
        assert run.outcome("h1") == alone


def test_a_host_without_power_is_left_out_and_taken_back(rig: Rig, alone: dict[str, Any]) -> None:
    with HostsRun(rig, "power", "h1:1,h3:2") as run:
        run.until(lambda: run.step() >= 4)
        rig.power_off("h3")
        off = time.monotonic()
        try:
            before = run.step()
            run.until(lambda: "lost h3" in run.text())
            noticed = time.monotonic() - off
            run.until(lambda: run.step() > before)
            resumed = time.monotonic() - off
        finally:
            rig.power_on("h3")
        assert run.wait() == 0, run.text()
        assert "h3 is back" in run.text()
        run.gone()
        assert run.outcome("h1") == alone
        print(f"noticed after {noticed:.1f} s, next step after {resumed:.1f} s")


def test_a_client_that_is_killed_leaves_nothing_running(rig: Rig) -> None:
    with HostsRun(rig, "client", "h1:1,h2:1") as run:
        run.until(lambda: run.step() >= 2)
        os.kill(run.coordinator(), signal.SIGKILL)
        run.process.wait()
        print(f"gone after {run.gone(40):.1f} s")


def test_ctrl_c_saves_and_the_run_goes_on_later(rig: Rig, alone: dict[str, Any]) -> None:
    with HostsRun(rig, "interrupted", "h1:1,h2:2") as run:
        run.until(lambda: run.step() >= 4)
        os.kill(run.coordinator(), signal.SIGINT)
        assert run.wait() == 130, run.text()
        assert "stopped by SIGINT; saved after step" in run.text()
        run.gone()
    with HostsRun(rig, "interrupted", "h1:1,h2:2", "small.yaml", "--resume") as run:
        assert run.wait() == 0, run.text()
        assert run.outcome("h1") == alone
