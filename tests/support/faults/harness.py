"""Runs of the small task in processes of their own: start, watch, disturb, and compare what is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankless.hardware.forking import ForkedProcess
from rankless.models.weights_files.weights import digest_file
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from support.made_once import made_once
from support.process_server import SERVER, TAG
from support.small_disk import mounted as small_disk  # noqa: F401  # for benchmarks/faults.py
from support.waiting import until

HERE = Path(__file__).parent
STEPS = 20
FINDS_TASK = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))  # a PYTHONPATH
# What variables that no library reads when it is loaded begin with.
READ_LATE = ("FAULT_", "RANKLESS_", "MASTER_", "LOCAL_", "GROUP_", "TORCHELASTIC_")
RECIPE = """\
task: small_task_for_faults:Small
batch: {images: 8, micro: 2}
epochs: 4
seed: 3
precision: fp32
optim: {lr: 0.05}
schedule: {warmup: 4}
ema: {decay: 0.9}
evaluate: {every: 2 epochs}
checkpoint: {every: 3}
workers: 0
"""
# What no person should have to read when a run ends early.
NOISE = re.compile(r"Traceback|Warning:|Error:|\[[WE]\d{4} |leaked|closing signal|Exception|torch\.|gloo")


class OrphansError(AssertionError): ...


@dataclass
class Process:
    pid: int
    kind: str  # launcher, rank 0, rank 1, …, other (loaders, fork servers, trackers)


class Watched:
    process: Any
    output: Any
    gone: Callable[[], float]

    def until(self, condition: Callable[[], Any], seconds: float = 60) -> Any:
        """Wait for something; fail where it does not come or the run ends before."""
        return until(condition, seconds, over=lambda: self.process.poll() is not None, said=self.text)

    def wait(self, seconds: float = 120) -> int:
        try:
            return int(self.process.wait(seconds))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s; it printed:\n{self.text()}") from None

    def text(self) -> str:
        self.output.seek(0)
        return str(self.output.read())

    def ends(self, code: int, *, noisy: bool = False, seconds: float = 120) -> str:
        """Check the exit code, and that no process and no noise is left; return what a person saw."""
        assert self.wait(seconds) == code, self.text()
        self.gone()
        assert noisy or not self.noise(), self.text()
        return self.text()

    def noise(self) -> list[str]:
        return [line for line in self.text().splitlines() if NOISE.search(line)]


class Run(Watched):
    """One start of ``rankless train``, which is forked unless ``new``; ``prepared``: see ``prepared.py``.

    Those that are forked have in common how texts are hashed, and what libraries read when they are loaded.
    """

    def __init__(
        self,
        folder: Path,
        world: int,
        *more: str,
        environment: Mapping[str, str] | None = None,
        prepared: str = "",
        new: bool = False,
    ) -> None:
        self.run, self.tag = RunDirectory(folder), uuid.uuid4().hex
        self.older = _all_processes()  # none of these can be of this run
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the run
        words = ["--resume"] if "--resume" in more else [str(recipe_file(folder))]
        words += [word for word in more if word != "--resume"]
        words = ["-m", "rankless", "train", *words, "--run", str(folder), "--devices", str(world)]
        words = [str(HERE / "prepared.py"), prepared, *words] if prepared else words
        added = {TAG: self.tag, "RANKLESS_CPU": "1", **(environment or {})}
        self.process = self._new(words, added) if new else self._forked(words, added)

    def _forked(self, words: list[str], added: Mapping[str, str]) -> ForkedProcess | subprocess.Popen[bytes]:
        if any(not name.startswith(READ_LATE) for name in added):
            return self._new(words, added)
        return SERVER.start(words, environment={**os.environ, **added}, cwd=HERE, output=self.output)

    def _new(self, words: list[str], added: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=HERE,
            env={**os.environ, **added},
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # as a terminal does: a group of its own
            # Ignored where the tests themselves run in the background.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes():
            kill(process.pid)
        self.process.wait()
        self.output.close()

    def processes(self) -> list[Process]:
        """Every living process of this run, found by a variable that all of them inherit."""
        return [Process(pid, _kind(pid, self.process.pid)) for pid in self._tagged()]

    def _tagged(self) -> list[int]:
        now, tag = _all_processes(), self.tag.encode()
        self.older &= now  # the number of one that has ended is given out again
        return [int(name) for name in now - self.older if tag in _bytes(f"/proc/{name}/environ")]

    def pid(self, kind: str) -> int:
        return self.until(lambda: next((p.pid for p in self.processes() if p.kind == kind), 0))

    def step(self) -> int:
        return reached(self.run)

    def events(self, *names: str) -> list[dict[str, Any]]:
        return [entry for entry in entries(self.run) if entry.get("event") in names]

    def starts(self) -> list[int]:
        """The steps that the ranks have begun or gone on after, start by start."""
        return [event["at"] for event in self.events("start", "resume")]

    def is_evaluating(self) -> bool:
        """Whether the last step is being evaluated; every fifth is, with ``evaluate.every=1 epoch``."""
        found = [entry for entry in entries(self.run) if "step" in entry or "evaluation" in entry]
        return bool(found) and found[-1].get("step", 1) % 5 == 0

    def gone(self, seconds: float = 30) -> float:
        """Wait until no process of the run is left; how long it took."""
        began = time.monotonic()
        while left := self.processes():
            if time.monotonic() - began > seconds:
                raise OrphansError(f"orphans: {[(p.kind, _command(p.pid)) for p in left]}")
            time.sleep(0.01)
        return time.monotonic() - began


def entries(run: RunDirectory) -> list[dict[str, Any]]:
    """The lines of the journal, if there is one."""
    with contextlib.suppress(OSError):
        return [*journal.read(run.journal)]
    return []


def reached(run: RunDirectory) -> int:
    return max(map(journal.step_of, entries(run)), default=0)


def recipe_file(folder: Path) -> Path:
    path = folder.parent / "small.yaml"
    if not path.exists():
        path.write_text(RECIPE, encoding="utf-8")
    return path


def outcome(folder: Path) -> dict[str, Any]:
    """What must not depend on what happened on the way: digests of the last checkpoint, and the journal."""
    run = RunDirectory(folder)
    last = run.pointed("last")
    assert last is not None, "no checkpoint"
    names = ("model", "ema", "training")
    return {
        "step": last,
        **{name: digest_file(run.step_directory(last) / f"{name}.safetensors") for name in names},
        "state": (run.step_directory(last) / "state.json").read_text(encoding="utf-8"),
        "journal": journal.numbers(run.journal),
    }


def undisturbed(folder: Path, *more: str) -> dict[str, Any]:
    with Run(folder, 1, *more, new=not more) as run:
        assert run.wait() == 0, run.text()
        run.gone()
    return outcome(folder)


def undisturbed_once(name: str, *more: str) -> dict[str, Any]:
    """The outcome of an undisturbed run, which is made once for all of the test session's workers."""
    return outcome(made_once(name, lambda folder: undisturbed(folder / "run", *more)) / "run")


def finish(folder: Path, world: int, *more: str) -> dict[str, Any]:
    with Run(folder, world, "--resume", *more) as run:
        assert run.wait() == 0, run.text()
        assert not run.noise(), run.text()
        run.gone()
    return outcome(folder)


def loaders(run: Run) -> list[int]:
    """The loader processes of a run: what a fork server has forked."""
    others = {process.pid for process in run.processes() if process.kind == "other"}
    return [pid for pid in others if parent(pid) in others]


def parent(pid: int) -> int:
    """The process that started another; 0 when it is gone."""
    return int((_bytes(f"/proc/{pid}/stat").decode().rpartition(")")[2].split() or ["", "0"])[1])


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _all_processes() -> set[str]:
    return set(filter(str.isdecimal, os.listdir("/proc")))  # noqa: PTH208  # every few milliseconds


def _kind(pid: int, launcher: int) -> str:
    if pid == launcher:
        return "launcher"
    name = _bytes(f"/proc/{pid}/comm").decode().strip()
    return name if name.startswith("rank ") else "other"


def _command(pid: int) -> str:
    return _bytes(f"/proc/{pid}/cmdline").decode().replace("\0", " ")


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # many, every few milliseconds
            return file.read()
    except OSError:  # gone, or not ours
        return b""
