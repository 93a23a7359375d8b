"""A process that measures steps of a recipe on one device.

The first line of its standard input is the resolved recipe (JSON). Each further line gives the name of a
condition, the measuring time in seconds, and the minimum number of steps. The answer, a line of JSON, covers
all steps measured so far under that condition, so that conditions can alternate. The engine runs the steps
with a learning rate of 0 to prevent divergence.
"""

from __future__ import annotations

import json
import statistics
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
_ADDED = 8 << 20  # bytes


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


class _Taken:
    """The durations measured under one condition."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = defaultdict(list)
        self.ready: list[list[tuple[int, float]]] = []  # per step: each bucket's bytes and ready time

    def summary(self, count: int, *, together: bool) -> dict[str, Any]:
        """Return the time in seconds of each part of a step with ``count`` micro-batches.

        ``together`` tells whether one backward pass covers all micro-batches.
        """
        backward = self.parts["backward"]
        # The last backward pass of a step includes the copies into buckets.
        ends = [value for number, value in enumerate(backward, 1) if not number % count]
        others = [value for number, value in enumerate(backward, 1) if number % count]
        if together:
            ends = others = self._each("backward", count)
        return {
            "load": quick(self._each("load", count)),
            "forward": quick(self._each("forward", count)),
            "backward": quick(others or ends),
            "last": quick(ends),
            "update": quick(self.parts["update"]),
            "buckets": _middle(self.ready),
        }

    def _each(self, part: str, count: int) -> list[float]:
        values = self.parts[part]
        return [sum(values[start : start + count]) / count for start in range(0, len(values), count)]


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
        self.buckets: list[tuple[int, float]] = []  # bytes and ready time of the current step's buckets
        self.taken: dict[str, _Taken] = defaultdict(_Taken)
        self._watch_buckets()

    def facts(self) -> dict[str, Any]:
        """Return the number of images and the sizes of the exchanges, which need no measurement."""
        from rankless.world.sync_norm import norms_over_batch

        state = self.state
        numbers = state.statistics.vector.numel() + 5  # with the counts, all in float64
        norms = [norm for _, norm in norms_over_batch(state.model)]
        is_sync = state.recipe.batch_norm == "sync"
        return {
            "images": len(self.data),
            "parameters": [p.numel() * p.element_size() for p in reversed(state.trained)],
            "totals": 8 * numbers,
            "norms": [4 * (norm.num_features + 1) for norm in norms] if is_sync else [],
            "learns_norms": bool(norms),
        }

    def run(self) -> None:
        from rankless.engine.layer_errors import explained
        from rankless.engine.loop import update
        from rankless.engine.totals import Flags

        self.buckets.clear()
        self.state.begin(0)  # step 0, at which a frozen backbone is not released
        self.clock.begin()
        with explained(self.state.recipe):
            totals = self.state.accumulator.run(self.done, self._drawn(), self._scaled, Flags())
        self.clock.end("backward")
        update(self.state, self.done, totals)
        self.clock.end("update")
        self.done += 1

    def _drawn(self) -> Iterator[Any]:
        for number in range(self.micro_batches):
            if number:
                self.clock.end("backward")
            batch = next(self.batches)
            self.clock.end("load")
            yield batch

    def _scaled(self, loss: Any) -> Any:
        """Return the scaled loss; the engine calls this between the forward and backward passes."""
        self.clock.end("forward")
        return self.state.scaler.scale(loss)

    def _watch_buckets(self) -> None:
        gradients: Any = getattr(self.state.accumulator, "gradients", None)
        self.together = gradients is None
        if self.together:
            return
        completed = gradients.completed

        def noted(bucket: Any) -> Any:
            buffer = bucket.buffer()
            self.buckets.append((buffer.numel() * buffer.element_size(), time.perf_counter()))
            return completed(bucket)

        gradients.completed = noted

    def measure(self, name: str, seconds: float, least: int) -> dict[str, Any]:
        if not self.done:
            self.run()  # the first step allocates memory
        taken = self.taken[name]
        self.clock.parts = taken.parts
        until, first = time.monotonic() + seconds, self.done
        while time.monotonic() < until or self.done < first + least:
            self.run()
            last = self.clock.parts["backward"][-1]
            began = self.clock.last - self.clock.parts["update"][-1] - last
            taken.ready.append([(size, (when - began) / last) for size, when in self.buckets])
        summary = taken.summary(self.micro_batches, together=self.together)
        return {**summary, "add": self._add(), "memory": memory_taken(self.state.world.device)}

    def _add(self) -> float:
        import torch

        sums = torch.zeros(2, _ADDED // 4, device=self.state.world.device)
        times = _Clock(sums.device)
        for _ in range(5):
            times.begin()
            sums[0].add_(sums[1])
            times.end("add")
        return min(times.parts["add"]) / _ADDED


def _middle(steps: list[list[tuple[int, float]]]) -> list[tuple[int, float]]:
    buckets: list[tuple[int, float]] = []
    for same in zip(*steps, strict=True):
        ready = statistics.median(when for _, when in same)
        before = buckets[-1][1] if buckets else 0.0
        buckets.append((same[0][0], min(max(ready, before), 1.0)))
    return buckets


if __name__ == "__main__":
    raise SystemExit(main())
