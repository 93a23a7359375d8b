"""A process that measures steps of a recipe on one device.

The first line of its standard input is the resolved recipe (JSON). Each further line gives the name of a
condition, the measuring time in seconds, and the minimum number of steps. The answer, a line of JSON, covers
all steps measured so far under that condition, so that conditions can alternate. The engine runs the steps
with a learning rate of 0 to prevent divergence.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rankless.hardware.heap import hold_freed_memory
from rankless.hardware.instruction_set import fix
from rankless.launch.planning.measurement_worker import memory_taken, quick, serve_requests, synchronizer

if TYPE_CHECKING:
    import torch

    from rankless.engine.state import TrainingState
    from rankless.recipe.schema import Recipe

_MICRO_BATCHES = 4  # maximum per measured step; more would only repeat the middle ones
_ENDLESS = 1_000_000  # epochs


class _Clock:
    """A clock that times the parts of a step; it waits for the device before each reading."""

    def __init__(self, device: torch.device) -> None:
        self._wait = synchronizer(device)
        self.parts: dict[str, list[float]] = defaultdict(list)
        self.begin()

    def begin(self) -> None:
        self._wait()
        self.last = time.perf_counter()

    def end(self, part: str) -> None:
        self._wait()
        now = time.perf_counter()
        self.parts[part].append(now - self.last)
        self.last = now


def main() -> int:
    hold_freed_memory()
    return serve_requests("measure", _measure)


def _measure(question: Callable[[], Any], answer: Callable[[Any], None]) -> None:
    text = question()
    fix(json.loads(text).get("cpu_isa", "native"))
    from rankless.hardware.computing import computes_like
    from rankless.recipe.load import from_json
    from rankless.recipe.schema import Batch
    from rankless.world.process_group import join

    recipe = from_json(text)
    count = recipe.batch.micro_batches
    if recipe.batch_norm != "sync":  # sync holds all micro-batches in memory at once
        count = min(count, _MICRO_BATCHES)
    short = replace(
        recipe, batch=Batch(images=count * recipe.batch.micro, micro=recipe.batch.micro), epochs=_ENDLESS
    )
    with computes_like(short), join() as world:
        steps = _Steps(short, world)
        answer(steps.facts())
        while True:
            name, seconds, least = question()
            answer(steps.measure(name, float(seconds), int(least)))


class _Steps:
    def __init__(self, recipe: Recipe, world: Any) -> None:
        from rankless.data.loader import MicroBatches
        from rankless.engine.schedule import StepSchedule, set_rate
        from rankless.engine.state import TrainingState
        from rankless.tasks import open_task

        task = open_task(recipe)
        self.data = task.training_data()
        self.state: TrainingState = TrainingState(task, recipe, world, len(self.data))
        set_rate(self.state.optimizer, 0.0)
        self.state.training_mode()
        schedule = StepSchedule(recipe, len(self.data))
        lines = schedule.lines(0, range(recipe.batch.micro_batches))
        self.batches: Any = MicroBatches(self.data, task.collate, lines, workers=0)
        self.micro_batches = recipe.batch.micro_batches
        self.clock = _Clock(world.device)
        self.done = 0
        self.taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def facts(self) -> dict[str, Any]:
        """Return the number of images and the sizes of the exchanges, which need no measurement."""
        from rankless.world.sync_norm import norms_over_batch

        state = self.state
        return {
            "images": len(self.data),
            "gradients": sum(p.numel() * p.element_size() for p in state.trained),
            "norms": len(norms_over_batch(state.model)),
        }

    def run(self) -> None:
        from rankless.engine.layer_errors import explained
        from rankless.engine.loop import update
        from rankless.engine.totals import Flags

        self.state.begin(0)  # step 0, at which a frozen backbone is not released
        self.clock.begin()
        with explained(self.state.recipe):
            totals = self.state.compute(self.done, self._drawn(), Flags())
        self.clock.end("compute")
        update(self.state, self.done, totals)
        self.clock.end("update")
        self.done += 1

    def _drawn(self) -> Iterator[Any]:
        for number in range(self.micro_batches):
            if number:
                self.clock.end("compute")
            batch = next(self.batches)
            self.clock.end("load")
            yield batch

    def measure(self, name: str, seconds: float, least: int) -> dict[str, Any]:
        """Return the seconds that loading and computing a micro-batch and the update take."""
        if not self.done:
            self.run()  # the first step allocates memory
        self.clock.parts = parts = self.taken[name]
        until, first = time.monotonic() + seconds, self.done
        while time.monotonic() < until or self.done < first + least:
            self.run()
        found = {part: quick(self._each(parts[part])) for part in ("load", "compute")}
        return {**found, "update": quick(parts["update"]), "memory": memory_taken(self.state.world.device)}

    def _each(self, values: list[float]) -> list[float]:
        """Return the means over the micro-batches of each step."""
        count = self.micro_batches
        sums = [sum(values[start : start + count]) for start in range(0, len(values), count)]
        return [one / count for one in sums]


if __name__ == "__main__":
    raise SystemExit(main())
