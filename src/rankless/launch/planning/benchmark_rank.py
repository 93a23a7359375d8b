"""A rank of the training run that ``rankless benchmark`` measures.

Its arguments are the run directory and the file through which the ranks connect. The process runs
:func:`rankless.engine.loop.train` and pauses after every turn. It reads the resolved recipe (JSON) and then
the number of steps of each turn, and sends back the durations of these steps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankless.engine.sinks.sink import Sink
from rankless.hardware.heap import hold_freed_memory
from rankless.hardware.instruction_set import fix
from rankless.launch.planning.measurement_worker import memory_taken, serve_requests, synchronizer

if TYPE_CHECKING:
    from rankless.engine.state import TrainingState


def main() -> int:
    hold_freed_memory()
    return serve_requests("bench", _train)


def _train(question: Callable[[], Any], answer: Callable[[Any], None]) -> None:
    recipe_text = question()
    fix(json.loads(recipe_text).get("cpu_isa", "native"))
    from rankless.engine.loop import train
    from rankless.hardware.computing import computes_like
    from rankless.launch.rank_job import fork_loaders_early
    from rankless.recipe.load import from_json
    from rankless.runs.directory import RunDirectory
    from rankless.world.process_group import join

    recipe = from_json(recipe_text)
    fork_loaders_early(recipe)
    with computes_like(recipe), join(Path(sys.argv[2])) as world:
        turns = Turns(question, answer)
        sinks = {"bench": lambda: turns.timing} if world.is_first else None
        train(recipe, RunDirectory(Path(sys.argv[1])), world, resume=False, observe=turns, sinks=sinks)


class Timing(Sink):
    """A sink that keeps the timing of the last step."""

    def __init__(self) -> None:
        self.last: Mapping[str, Any] = {}

    def step(self, entry: Mapping[str, Any]) -> None:
        self.last = entry["timing"]


class Turns:
    """An observer that measures every step and pauses the training between turns.

    ``question`` returns the number of steps in the next turn. ``answer`` receives the measurements of each
    step: its duration (``seconds``), the time spent waiting for images (``waited``) and for other ranks
    (``network``), and the time from the first image to the summed gradients (``accumulated``), which includes
    both waits.
    """

    def __init__(self, question: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        self.question, self.answer = question, answer
        self.timing = Timing()  # type: ignore[abstract]  # inherited methods ignore all other events
        self.left = 1  # the first turn is one step, to allocate memory and to estimate the duration
        self.steps: list[dict[str, float]] = []
        self.accumulated = 0.0
        self.watched: Any = None
        self.since = time.perf_counter()

    def __call__(self, step: int, state: TrainingState, scores: Any) -> None:
        """Record a step; at the end of a turn, send the answer and wait for the next request."""
        wait = synchronizer(state.world.device)
        wait()
        timing = self.timing.last
        inside = timing.get("seconds", 0.0)
        self.steps.append(
            {
                "seconds": time.perf_counter() - self.since,
                "waited": timing.get("waited", 0.0) * inside,
                "network": timing.get("network", 0.0) * inside,
                "accumulated": self.accumulated,
            }
        )
        if state.accumulator is not self.watched:
            self._watch(state.accumulator, wait)
        self.left -= 1
        if not self.left:
            self.answer({"steps": self.steps, "memory": memory_taken(state.world.device)})
            self.steps = []
            self.left = int(self.question())
        self.since = time.perf_counter()

    def _watch(self, accumulator: Any, wait: Callable[[], None]) -> None:
        run = accumulator.run

        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            totals = run(*arguments)
            wait()
            self.accumulated = time.perf_counter() - began
            return totals

        accumulator.run = timed
        self.watched = accumulator


if __name__ == "__main__":
    raise SystemExit(main())
