"""What a plan starts from, measured on this machine by processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rankless.engine.workers import loader_processes
from rankless.errors import ShortageError, UserError
from rankless.launch.opening import device
from rankless.launch.planning.network_process import SIZES
from rankless.launch.planning.workload import Bucket, Link, Workload
from rankless.recipe.load import to_json
from rankless.recipe.schema import Recipe
from rankless.world.reduce import BUCKET_MIB

_ROUNDS, _SECONDS = 2, 2.0  # of measuring steps, alone and with all cores busy in turn
_LEAST = 3  # steps
_LIMIT = 120.0  # seconds, for two processes to exchange some hundred megabytes
_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE")
_PAGE = "rankless.launch.planning"


class StepProcess:
    """A process that measures steps; see :mod:`rankless.launch.planning.step_process`."""

    def __init__(self, recipe: Recipe, log: IO[bytes]) -> None:
        self.log = log
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{_PAGE}.step_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(),
            text=True,
        )
        self.ask(json.dumps(to_json(recipe)))

    def ask(self, line: str) -> None:
        """Ask for the answer to one line."""
        if self._process.stdin is not None:
            try:
                print(line, file=self._process.stdin, flush=True)
            except BrokenPipeError:
                self.answer()  # raises what the process had to say

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def answer(self) -> dict[str, Any]:
        """The answer to the line before.

        Raises:
            UserError: the process met one, or died; a :class:`ShortageError` where its memory ran out.
        """
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise _died("a step", self._process.wait(), self.log)
        answer: dict[str, Any] = json.loads(line)
        if problems := answer.get("problems"):
            raise (ShortageError if answer["shortage"] else UserError)(problems)
        return answer

    def end(self) -> None:
        """Let it go."""
        self._process.kill()
        self._process.communicate()


class Steps:
    """What the steps of a recipe take here.

    Args:
        recipe: resolved.
        processes: to measure with; all must have started.
    """

    def __init__(self, recipe: Recipe, processes: Sequence[StepProcess]) -> None:
        self._recipe, self._processes = recipe, processes
        self._facts = _answers(processes)
        self._alone: dict[str, Any] = {}
        self._together: dict[str, Any] = {}

    def given(self, seconds: float) -> Workload:
        """A step that takes so long on another machine.

        A third of it is taken for forward, the rest for backward passes, and the gradients come evenly.
        """
        each = seconds / self._recipe.batch.micro_batches
        sizes = _buckets(self._facts["parameters"])
        ends = [sum(sizes[: number + 1]) / (sum(sizes) or 1) for number in range(len(sizes))]
        return self._workload(
            {
                "load": 0.0,
                "forward": each / 3,
                "backward": each * 2 / 3,
                "last": each * 2 / 3,
                "update": 0.0,
                "add": 0.0,
                "buckets": list(zip(sizes, ends, strict=True)),
            }
        )

    def measure(self, busy: int) -> None:
        """Measure one process, then ``busy`` side by side, for some seconds each; may be called again.

        The two take turns, so that other work on the machine hits both.
        """
        for _ in range(_ROUNDS):
            self._alone = self._ask(1)
            self._together = self._ask(busy) if busy > 1 else self._alone

    def measured(self) -> tuple[Workload, float]:
        """A step of one process, and how many times as long one of several side by side takes."""
        work = self._workload(self._alone)
        return work, contended(work, self._workload(self._together))

    def _ask(self, busy: int) -> dict[str, Any]:
        for process in self._processes[:busy]:
            process.ask(json.dumps([f"{busy} busy", _SECONDS, _LEAST]))
        return _answers(self._processes[:busy])

    def _workload(self, answer: Mapping[str, Any]) -> Workload:
        facts, recipe = self._facts, self._recipe
        # With batch norms over the whole batch the gradients are exchanged as one.
        buckets = answer["buckets"] or [(sum(facts["parameters"]), 1.0)]
        return Workload(
            recipe.batch.micro_batches,
            recipe.batch.micro,
            facts["images"],
            **{name: answer[name] for name in ("load", "forward", "backward", "last", "update", "add")},
            buckets=tuple(Bucket(int(size), float(ready)) for size, ready in buckets),
            totals=facts["totals"],
            norms=tuple(facts["norms"]),
            workers=loader_processes(recipe, len(self._processes), device().type),
        )


@contextmanager
def opened_steps(recipe: Recipe, processes: int) -> Iterator[Steps]:
    """So many processes that can measure steps of a resolved recipe.

    Raises:
        UserError: the recipe cannot be trained here.
    """
    started: list[StepProcess] = []
    with tempfile.TemporaryFile() as log:
        try:
            for _ in range(processes):
                started.append(StepProcess(recipe, log))
            yield Steps(recipe, started)
        finally:
            for process in started:
                process.end()


def _answers(processes: Sequence[StepProcess]) -> dict[str, Any]:
    """The first one's answer, when all have answered."""
    first, *_ = [process.answer() for process in processes]
    return first


def contended(alone: Workload, together: Workload) -> float:
    """How many times as long computing takes in company, at least 1."""
    count = alone.micro_batches
    return max(together.computing(count) / alone.computing(count), 1.0)


def loopback() -> dict[int, float]:
    """Seconds of an exchange between two processes of this machine, over gloo, by the bytes of its sums.

    Raises:
        UserError: it could not be measured.
    """
    environment = {**_environment(), "RANKLESS_CPU": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="rankless-") as folder, tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", f"{_PAGE}.network_process", str(Path(folder) / "store")]
        ranks = []
        try:
            for rank in range(2):
                own = {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
                ranks.append(
                    subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env={**environment, **own})
                )
            output = ranks[0].communicate(timeout=_LIMIT)[0]
            codes = [process.wait(_LIMIT) for process in ranks]
        except subprocess.TimeoutExpired:
            raise UserError(
                "the network between two processes of this machine could not be measured "
                f"within {_LIMIT:.0f} s; give --bandwidth and --latency"
            ) from None
        finally:
            for process in ranks:
                process.kill()
                process.communicate()
        if any(codes):
            raise _died("the network", next(filter(None, codes)), log)
    return {int(size): seconds for size, seconds in json.loads(output).items()}


def fitted(seconds: Mapping[int, float], add: float) -> Link:
    """The link over which two ranks of one machine exchange sums of so many bytes in so many seconds.

    An exchange between two is a message each way, half of the sum added, and another message each way; every
    message has half of the bytes.
    """
    small, large = SIZES[0], SIZES[-1]
    overhead = Link(1.0, 1.0).overhead
    per_byte = (seconds[large] - seconds[small]) / (large - small)
    bandwidth = 1 / max(per_byte - add / 2, per_byte / 4, 1e-12)
    return Link(bandwidth, max(seconds[small] / 2 - overhead, 1e-6), overlaps=False)


def _buckets(parameters: Sequence[int]) -> list[int]:
    """Bytes of DDP's buckets: a bucket is closed by the parameter that fills it."""
    sizes = [0]
    for size in parameters:
        if sizes[-1] >= BUCKET_MIB << 20:
            sizes.append(0)
        sizes[-1] += size
    return sizes


def _environment() -> dict[str, str]:
    """This process's, without what would make its children ranks of somebody's."""
    return {name: value for name, value in os.environ.items() if name not in _OF_A_LAUNCHER}


def _died(what: str, code: int, log: IO[bytes]) -> UserError:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return UserError(
        f"{what} could not be measured: the process ended with {code} "
        f"({lines[-1] if lines else 'no output'}); give --step-ms, --bandwidth and --latency"
    )
