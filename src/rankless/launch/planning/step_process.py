"""A process that measures steps of a recipe on one device, started as a module.

It reads the recipe (JSON, resolved) from the first line of its standard input. Each further line gives the
name of a condition, how many seconds to measure, and the minimum number of steps. The answer, a line of JSON,
covers everything measured so far under that condition, so conditions can alternate. The steps are the
engine's own, timed in between, with a learning rate of 0 so that nothing diverges.
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
from rankless.launch.planning.measurement_worker import answering, memory_taken, quick, waiting_for

if TYPE_CHECKING:
    import torch

    from rankless.engine.state import TrainingState
    from rankless.recipe.schema import Recipe

_MICRO_BATCHES = 4  # of a measured step; more would only repeat the middle ones
_ENDLESS = 1_000_000  # epochs
_ADDED = 8 << 20  # bytes


class _Clock:
    """Notes when each part of a step ends; on a GPU it waits for the device first."""

    def __init__(self, device: torch.device) -> None:
        self._wait = waiting_for(device)
        self.parts: dict[str, list[float]] = defaultdict(list)
        self.begin()

    def begin(self) -> None:
        self._wait()
        self.last = time.perf_counter()

    def end(self, part: str) -> None:
        """Add the time since the last call to ``part``."""
        self._wait()
        now = time.perf_counter()
        self.parts[part].append(now - self.last)
        self.last = now


class _Taken:
    """The measurements under equal conditions."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = defaultdict(list)
        self.ready: list[list[tuple[int, float]]] = []  # per step, bytes of each bucket and when it was ready

    def summary(self, count: int, *, together: bool) -> dict[str, Any]:
        """Seconds of each part of a step.

        Args:
            count: micro-batches of a step.
            together: whether there is one backward pass for all of them.
        """
        backward = self.parts["backward"]
        # The last backward pass of a step has the copies into buckets.
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
        """Seconds of a part by the micro-batch, step by step."""
        values = self.parts[part]
        return [sum(values[start : start + count]) / count for start in range(0, len(values), count)]


def main() -> int:
    """Measure whenever asked, until the standard input ends."""
    hold_freed_memory()
    return answering("measure", _measure)


def _measure(question: Callable[[], Any], answer: Callable[[Any], None]) -> None:
    asked = question()
    fix(json.loads(asked).get("cpu_isa", "native"))
    from rankless.engine.settings import computes_like
    from rankless.recipe.load import from_json
    from rankless.recipe.schema import Batch
    from rankless.world.process_group import join

    recipe = from_json(asked)
    count = recipe.batch.micro_batches
    if recipe.batch_norm != "sync":  # which has all of them in memory at once
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
    """The steps of a recipe, and how long their parts take."""

    def __init__(self, recipe: Recipe, world: Any) -> None:
        from rankless.data.loader import MicroBatches
        from rankless.engine.rates import set_rate
        from rankless.engine.schedule import StepSchedule
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
        self.buckets: list[tuple[int, float]] = []  # of the step under way: bytes, and when each was ready
        self.taken: dict[str, _Taken] = defaultdict(_Taken)
        self._watch_buckets()

    def facts(self) -> dict[str, Any]:
        """Return facts that need no measuring: images, and the bytes of an exchange."""
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
        """Train one step."""
        from rankless.engine.layer_errors import explained
        from rankless.engine.loop import update
        from rankless.engine.totals import Flags

        self.buckets.clear()
        self.state.begin(0)  # nothing is released meanwhile
        self.clock.begin()
        with explained(self.state.recipe):
            totals = self.state.accumulator.run(self.done, self._drawn(), self._scaled, Flags())
        self.clock.end("backward")
        update(self.state, self.done, totals)
        self.clock.end("update")
        self.done += 1

    def _drawn(self) -> Iterator[Any]:
        """The micro-batches; all that passes outside is the engine's."""
        for number in range(self.micro_batches):
            if number:
                self.clock.end("backward")
            batch = next(self.batches)
            self.clock.end("load")
            yield batch

    def _scaled(self, loss: Any) -> Any:
        """The loss, scaled; called between the forward and the backward pass."""
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
        """Train for this long, at least ``least`` steps; return the times of a step's parts.

        With the memory (bytes) that this process has taken at most until now.
        """
        if not self.done:
            self.run()  # the first one allocates
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
        """Seconds to add one byte's worth of gradients."""
        import torch

        sums = torch.zeros(2, _ADDED // 4, device=self.state.world.device)
        times = _Clock(sums.device)
        for _ in range(5):
            times.begin()
            sums[0].add_(sums[1])
            times.end("add")
        return min(times.parts["add"]) / _ADDED


def _middle(steps: list[list[tuple[int, float]]]) -> list[tuple[int, float]]:
    """Bytes of every bucket and the median of when it was ready, rising, within 0 and 1."""
    buckets: list[tuple[int, float]] = []
    for same in zip(*steps, strict=True):
        ready = statistics.median(when for _, when in same)
        before = buckets[-1][1] if buckets else 0.0
        buckets.append((same[0][0], min(max(ready, before), 1.0)))
    return buckets


if __name__ == "__main__":
    raise SystemExit(main())
