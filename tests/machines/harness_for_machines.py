"""Runs of the small task on the hosts of a rig: start, watch, disturb, and compare what is left."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from harness_for_faults import RECIPE, outcome
from rig import CLIENT, Rig

from rankless.runs import journal
from rankless.runs.directory import RunDirectory

FAULTS = Path(__file__).parents[1] / "faults"
SLEEP = "0.2"  # seconds a micro-batch takes longer: 0.4 s a step on three ranks


@contextmanager
def machines(folder: Path, count: int) -> Iterator[Rig]:
    """Machines that have this environment's Python and the small task, and the recipe on each."""
    source = Path(__file__).parents[2] / "src"
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": f"{source}:{FAULTS}",
        "RANKLESS_CPU": "1",
        "OMP_NUM_THREADS": "1",
        "FAULT_SLEEP": SLEEP,
    }
    with Rig(folder, count, environment) as rig:
        (rig.files(CLIENT) / "small.yaml").write_text(RECIPE, encoding="utf-8")
        yield rig


class HostsRun:
    """One start of ``rankless train --hosts`` on the client of a rig; a context manager.

    Args:
        rig: the machines.
        name: of the run directory, below ``runs``.
        hosts: as for ``--hosts``.
        more: words for the command line.
    """

    def __init__(self, rig: Rig, name: str, hosts: str, *more: str) -> None:
        self.rig, self.folder = rig, Path("runs") / name
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the run
        words = [] if "small.yaml" in more else ["small.yaml"]
        ssh = f"ssh -F {rig.config}"
        command = [sys.executable, "-m", "rankless", "train", *words, *more, "--run", str(self.folder)]
        self.process = rig.start(
            CLIENT,
            [*command, "--hosts", hosts, "--ssh", ssh],
            stdout=self.output,
            stderr=self.output,
            start_new_session=True,
            # Ignored where the tests themselves run in the background.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def __enter__(self) -> HostsRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid, _ in self.client():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()

    def client(self) -> list[tuple[int, str]]:
        """The processes of the client."""
        return [(pid, command) for pid, (_, command) in self.rig.processes(CLIENT).items()]

    def coordinator(self) -> int:
        """The process of the command itself."""
        return next(pid for pid, command in self.client() if "rankless train" in command)

    def processes(self, host: str) -> dict[str, int]:
        """The processes of the training on a host by their names: ``rank 0``, ``rankless host``, …"""
        return {name: pid for pid, (name, _) in self.rig.processes(host).items()}

    def supervisor(self, host: str) -> int:
        """The supervisor on a host."""
        return next(pid for pid, (_, command) in self.rig.processes(host).items() if "base64" in command)

    def step(self) -> int:
        """Steps in the newest journal of any host."""
        steps = [0]
        for host in self.rig.numbers:
            path = RunDirectory(self.rig.files(host) / self.folder).journal
            try:
                steps += [journal.step_of(entry) for entry in journal.read(path)]
            except OSError:
                continue
        return max(steps)

    def until(self, condition: Callable[[], Any], seconds: float = 60) -> Any:
        """Wait for something; fail where it does not come or the run ends before."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"it did not come, the run printed:\n{self.text()}")
            time.sleep(0.02)
        return value

    def wait(self, seconds: float = 120) -> int:
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except Exception:
            raise AssertionError(f"still running after {seconds} s; it printed:\n{self.text()}") from None

    def text(self) -> str:
        """What a person saw."""
        self.output.seek(0)
        return self.output.read()

    def gone(self, seconds: float = 30) -> float:
        """Wait until nothing of the run is left on any host; how long it took."""
        began = time.monotonic()
        while left := {
            host: self.rig.processes(host) for host in self.rig.numbers if self.rig.processes(host)
        }:
            assert time.monotonic() - began < seconds, f"orphans: {left}"
            time.sleep(0.05)
        return time.monotonic() - began

    def outcome(self, host: str) -> dict[str, Any]:
        """What a host's copy of the run holds."""
        return outcome(self.rig.files(host) / self.folder)
