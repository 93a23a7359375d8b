"""What ``rankless bench`` measures in turns: the ranks of a training, and a plain loop."""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from rankless.engine.workers import loader_processes
from rankless.errors import ShortageError, UserError, counted
from rankless.hardware import memory
from rankless.launch.opening import begin, device
from rankless.launch.planning.bench_advice import Shares
from rankless.launch.planning.measurement_worker import AskedProcess
from rankless.launch.planning.memory_guard import guarded
from rankless.recipe.load import to_json
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory

Mode = tuple[int, str]
"""Of the plain loop: how many images at a time, and the precision."""
_MOST = 200  # steps of a turn
_USABLE = 0.9  # of the memory that is free: other programs come and go


class _Processes(ExitStack):
    """Processes that end with the context."""

    def __init__(self) -> None:
        super().__init__()
        self.log = self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - it is one
        self.processes: list[AskedProcess] = []

    def _answers(self) -> list[dict[str, Any]]:
        return [process.answer() for process in self.processes]


class Ranks(_Processes):
    """The ranks of a training of Rankless.

    Args:
        recipe: resolved.
        ranks: how many.
        folder: an empty one, for the run.

    Attributes:
        seconds: of every step of a turn, turn by turn, on rank 0.
        memory: bytes of the rank that has taken most.
    """

    def __init__(self, recipe: Recipe, ranks: int, folder: Path) -> None:
        super().__init__()
        self.recipe, self.ranks, self.folder = recipe, ranks, folder
        self.seconds: list[list[float]] = []
        self.memory = 0
        self._parts: dict[str, float] = defaultdict(float)
        # What loaders prepare while others have their turn is used up before anything counts.
        workers = loader_processes(recipe, ranks, device().type)
        self._prepared = -(-2 * workers * ranks // recipe.batch.micro_batches)

    def __enter__(self) -> Self:
        run = RunDirectory(self.folder / "run")
        run.path.mkdir()
        begin(run, self.recipe)
        for rank in range(self.ranks):
            of_rank = {"RANK": rank, "LOCAL_RANK": rank}
            of_all = {"WORLD_SIZE": self.ranks, "LOCAL_WORLD_SIZE": self.ranks}
            self.processes.append(
                self.enter_context(
                    AskedProcess(
                        "bench_rank",
                        f"training with {counted(self.ranks, 'device')}",
                        self.log,
                        variables={name: str(value) for name, value in {**of_rank, **of_all}.items()},
                        arguments=(str(run.path), str(self.folder / "meeting")),
                    )
                )
            )
        try:
            for process in self.processes:
                process.ask(to_json(self.recipe))
            self._answers()  # of a step that allocates
            self._usual = self._turn(1)[0]["seconds"]
        except BaseException:
            self.close()
            raise
        return self

    def turn(self, budget: float) -> None:
        """Train for so many seconds, a step at least."""
        count = min(max(round(budget / self._usual), 1), _MOST)
        steps = self._turn(self._prepared + count)[self._prepared :]
        self.seconds.append([step["seconds"] for step in steps])
        self._usual = statistics.fmean(self.seconds[-1])
        for step in steps:
            for part, seconds in step.items():
                self._parts[part] += seconds

    def shares(self) -> Shares:
        """What the steps of rank 0 consisted of."""
        total = self._parts["seconds"]
        waiting, network = self._parts["waited"] / total, self._parts["network"] / total
        inside = self._parts["accumulated"] / total
        compute = max(inside - waiting - network, 0.0)
        return Shares(compute, waiting, network, max(1.0 - compute - waiting - network, 0.0))

    def _turn(self, count: int) -> list[dict[str, float]]:
        for process in self.processes:
            process.ask(count)
        answers = self._answers()
        self.memory = max(answer["memory"] for answer in answers)
        steps: list[dict[str, float]] = answers[0]["steps"]
        return steps


class Bare(_Processes):
    """A plain loop in a process of its own.

    Args:
        recipe: resolved.
        threads: of the CPU that it computes with.

    Attributes:
        rounds: seconds of every step of a turn, turn by turn, by mode.
        memory: bytes that it had taken at most when a mode was tried for the first time.
    """

    def __init__(self, recipe: Recipe, threads: int) -> None:
        super().__init__()
        self.recipe, self.threads = recipe, threads
        self.rounds: dict[Mode, list[list[float]]] = defaultdict(list)
        self.memory: dict[Mode, int] = {}
        self._usual: dict[Mode, float] = {}

    def largest(self, images: int) -> int:
        """Find how many images it can take at a time: all, or as often halved as memory demands."""
        while True:
            try:
                self._start()
                with guarded(self.processes[0].pid, self._free()) as over:
                    self.turn((images, self.recipe.precision), 0.0)
                return images
            except ShortageError:
                if images <= self.recipe.batch.micro:
                    raise
            except UserError:
                if not over or images <= self.recipe.batch.micro:
                    raise
            self.processes.pop().end()
            images = self._smaller(images)

    def turn(self, mode: Mode, budget: float) -> None:
        """Train for so many seconds, a step at least."""
        count = min(max(round(budget / self._usual[mode]), 1), _MOST) if mode in self._usual else 1
        self.processes[0].ask([*mode, count])
        (answer,) = self._answers()
        self.rounds[mode].append(answer["seconds"])
        self._usual[mode] = statistics.fmean(answer["seconds"])
        self.memory.setdefault(mode, answer["memory"])

    def forget(self) -> None:
        """Let what was measured so far not count, except to know how long a step takes."""
        self.rounds.clear()

    def _start(self) -> None:
        process = self.enter_context(AskedProcess("bare_process", "a plain loop", self.log))
        self.processes.append(process)
        process.ask([to_json(self.recipe), self.threads])
        process.answer()

    def _free(self) -> int:
        """Bytes that it may take; 0 is no limit."""
        return int(_USABLE * memory.available()) if device().type == "cpu" else 0

    def _smaller(self, images: int) -> int:
        """The next smaller part of the batch that is a whole number of them, a micro-batch at least."""
        whole, least = self.recipe.batch.images, self.recipe.batch.micro
        return max((size for size in range(least, images // 2 + 1) if whole % size == 0), default=least)
