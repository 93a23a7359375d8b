"""Runs of the small task on the hosts of a rig: start, watch, disturb, and compare what is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankless.runs.directory import RunDirectory
from support.faults.harness import RECIPE, Watched, entries, outcome, reached
from support.machines.rig import CLIENT, Rig
from support.waiting import until

FAULTS = Path(__file__).parents[1] / "faults"  # where the small task is
LONG = ("epochs=12", "checkpoint.every=3")  # 60 steps
SLEEP = "0.2"  # seconds a micro-batch takes longer: 0.4 s a step on three ranks


@contextmanager
def machines(folder: Path, count: int, own: Mapping[str, Mapping[str, str]] | None = None) -> Iterator[Rig]:
    """Machines that have this environment's Python and the small task, and the recipe on each.

    What lies in ``site`` of a machine's own folder is in its Python's path; ``own`` are variables of one.
    """
    source = Path(__file__).parents[3] / "src"
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": f"{folder}/work/site:{source}:{FAULTS}",
        "RANKLESS_CPU": "1",
        "OMP_NUM_THREADS": "1",
        "FAULT_SLEEP": SLEEP,
    }
    with Rig(folder, count, environment, own) as rig:
        (rig.files(CLIENT) / "small.yaml").write_text(RECIPE, encoding="utf-8")
        yield rig


def clock(folder: Path) -> Path | None:
    """A library that puts a program's clock ``CLOCK_AHEAD`` seconds ahead; None without a C compiler."""
    if not (compiler := shutil.which("cc")):
        return None
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


# A namespace has no wall clock of its own.
_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long ahead(void) { const char *text = getenv("CLOCK_AHEAD"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t id, struct timespec *at) {
    int (*next)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = next(id, at);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) at->tv_sec += ahead();
    return code;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class HostsRun(Watched):
    """One start of ``rankless train --hosts``, or of ``verify``, on the client of a rig."""

    def __init__(
        self, rig: Rig, name: str, hosts: str, *more: str, verb: str = "train", ssh: str = ""
    ) -> None:
        self.rig, self.folder = rig, Path("runs") / name
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the run
        words = ["small.yaml"] if verb == "train" and "small.yaml" not in more else []
        words += [*more, *(["--run", str(self.folder)] if verb == "train" else [])]
        ssh = f"ssh -F {rig.config} {ssh}".strip()
        command = [sys.executable, "-m", "rankless", verb, *words]
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

    def __exit__(self, *_: object) -> None:
        for pid, _ in self.client():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()

    def client(self) -> list[tuple[int, str]]:
        return [(pid, command) for pid, (_, command) in self.rig.processes(CLIENT).items()]

    def coordinator(self) -> int:
        return next(pid for pid, command in self.client() if "rankless train" in command)

    def processes(self, host: str) -> dict[str, int]:
        """The processes of the training on a host by their names: ``rank 0``, ``rankless host``, …"""
        return {name: pid for pid, (name, _) in self.rig.processes(host).items()}

    def supervisor(self, host: str) -> int:
        processes = self.rig.processes(host).items()
        return next(pid for pid, (_, command) in processes if "rankless supervisor" in command)

    def step(self) -> int:
        return max(map(reached, self._runs()))

    def steps_on(self, seconds: float = 60) -> None:
        """Wait for a step that is done from now on."""
        before = self.steps()
        self.until(lambda: self.steps() - before, seconds)

    def steps(self) -> set[tuple[int, float]]:
        """All steps in the journals of all hosts; one that was done twice took another time."""
        every = [entry for run in self._runs() for entry in entries(run)]
        return {(entry["step"], entry["timing"]["seconds"]) for entry in every if "step" in entry}

    def _runs(self) -> list[RunDirectory]:
        return [RunDirectory(self.rig.files(host) / self.folder) for host in self.rig.numbers]

    def gone(self, seconds: float = 30) -> float:
        """Wait until nothing of the run is left on any host; how long it took."""

        def left() -> list[Any]:
            return [one for host in self.rig.numbers for one in self.rig.processes(host).items()]

        began = time.monotonic()
        until(lambda: not left(), seconds, said=left, every=0.05)
        return time.monotonic() - began

    def outcome(self, host: str) -> dict[str, Any]:
        return outcome(self.rig.files(host) / self.folder)
