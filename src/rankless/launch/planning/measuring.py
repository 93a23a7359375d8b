"""Measure the inputs of a plan on this machine in separate processes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from rankless.engine.loader_count import loader_processes
from rankless.errors import UserError
from rankless.hardware.compute_device import compute_device
from rankless.launch.planning.measurement_worker import (
    PACKAGE,
    MeasurementProcess,
    died,
    environment,
    quick,
    rank_variables,
)
from rankless.launch.planning.network_process import SIZES
from rankless.launch.planning.prediction import Step
from rankless.recipe.load import to_json
from rankless.recipe.schema import Recipe

_ROUNDS = 2  # alternations of one process and several
_LEAST = 3  # steps
_LIMIT = 120.0  # seconds for two processes to exchange a few hundred megabytes
_INSTEAD = "use --step-ms, --bandwidth and --latency instead"


class StepProcess(MeasurementProcess):
    """A process that runs :mod:`rankless.launch.planning.step_process`."""

    def __init__(self, recipe: Recipe, log: IO[bytes]) -> None:
        super().__init__("step_process", "a step", log, instead=_INSTEAD)
        self.ask(to_json(recipe))


class Steps:
    """The measured steps of a recipe on this machine."""

    def __init__(self, recipe: Recipe, processes: Sequence[StepProcess]) -> None:
        self._recipe, self._processes = recipe, processes
        self._facts = _answers(processes)
        self._alone: dict[str, Any] = {}
        self._together: dict[str, Any] = {}

    def given(self, seconds: float) -> Step:
        """Return a step that takes ``seconds`` on another machine, with images that load in no time."""
        each = seconds / self._recipe.batch.micro_batches
        return self._step({"load": 0.0, "compute": each, "update": 0.0})

    def measure(self, busy: int, seconds: float) -> None:
        """Measure one process alone and ``busy`` processes at the same time, for ``seconds`` each.

        The two measurements alternate, so that other work on the machine affects both equally.
        """
        for _ in range(_ROUNDS):
            self._alone = self._ask(1, seconds)
            self._together = self._ask(busy, seconds) if busy > 1 else self._alone

    def measured(self) -> tuple[Step, float]:
        """Return the step of one process, and the factor (at least 1) by which several are slower."""
        alone, together = self._step(self._alone), self._step(self._together)
        count = alone.micro_batches
        return alone, max(together.computing(count) / alone.computing(count), 1.0)

    def _ask(self, busy: int, seconds: float) -> dict[str, Any]:
        for process in self._processes[:busy]:
            process.ask([f"{busy} busy", seconds, _LEAST])
        return _answers(self._processes[:busy])

    def _step(self, answer: Mapping[str, Any]) -> Step:
        facts, recipe = self._facts, self._recipe
        return Step(
            recipe.batch.micro_batches,
            recipe.batch.micro,
            facts["images"],
            **{name: answer[name] for name in ("load", "compute", "update")},
            gradients=facts["gradients"],
            norms=facts["norms"] if recipe.batch_norm == "sync" else 0,
            workers=loader_processes(recipe, len(self._processes), compute_device().type),
        )


@contextmanager
def opened_steps(recipe: Recipe, processes: int) -> Iterator[Steps]:
    """Yield the steps of a resolved recipe, to be measured in ``processes`` processes."""
    with tempfile.TemporaryFile() as log, ExitStack() as stack:
        yield Steps(recipe, [stack.enter_context(StepProcess(recipe, log)) for _ in range(processes)])


def _answers(processes: Sequence[StepProcess]) -> dict[str, Any]:
    first, *_ = [process.answer() for process in processes]
    return first


Exchanged = Mapping[str, Mapping[str, float]]
"""Duration of an exchange in seconds, by transport (``sockets``, ``memory``) and size in bytes (as text)."""


def loopback() -> Exchanged:
    """Measure the exchange between two processes on this machine."""
    variables = {**environment(), "RANKLESS_CPU": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="rankless-") as folder, tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", f"{PACKAGE}.network_process", str(Path(folder) / "store")]
        ranks = []
        try:
            for rank in range(2):
                env = {**variables, **rank_variables(rank, 2)}
                ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env))
            output = ranks[0].communicate(timeout=_LIMIT)[0]
            codes = [process.wait(_LIMIT) for process in ranks]
        except subprocess.TimeoutExpired:
            raise UserError(
                "the network between two processes on this machine could not be measured "
                f"within {_LIMIT:.0f} s; use --bandwidth and --latency instead"
            ) from None
        finally:
            for process in ranks:
                process.kill()
                process.communicate()
        if any(codes):
            raise died("the network", next(filter(None, codes)), log, _INSTEAD)
    found: Exchanged = json.loads(output)
    return found


def fitted(rounds: Sequence[Exchanged]) -> tuple[float, float, float]:
    """Return the bandwidth, latency and copying time that fit exchanges between two ranks.

    Over sockets, each rank sends half of the bytes twice, in two messages. In memory, it copies half of the
    bytes, adds half of them and copies the total.
    """
    small, large = (f"{size}" for size in (SIZES[0], SIZES[-1]))
    sockets, memory = (
        {size: quick(each[kind][size] for each in rounds) for size in (small, large) if kind in rounds[0]}
        for kind in ("sockets", "memory")
    )
    between = int(large) - int(small)
    bandwidth = between / max(sockets[large] - sockets[small], 1e-9)
    copy = max((memory[large] - memory[small]) / between / 2, 1e-12) if memory else 0.0
    return bandwidth, max(sockets[small] / 2, 1e-6), copy
