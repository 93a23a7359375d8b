"""The measured loops as bodies of contenders: Rankless itself, and the plain one."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

import bare
from rankless.engine.loop import train
from rankless.engine.state import TrainingState
from rankless.hardware.computing import computes_like
from rankless.hardware.heap import hold_freed_memory
from rankless.recipe.load import from_json
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.structures import DetectionBatch, Scores
from rankless.tasks import open_task
from rankless.tasks.protocol import Task
from rankless.world.process_group import World, join
from rankless.world.thread_transport import Meeting, thread_ranks
from turns import Finished, Turns

Observer = Callable[[int, Any, Any], None]


class Subject(NamedTuple):
    """The objects that functions run inside a contender of Rankless receive."""

    task: Task
    recipe: Recipe
    world: World
    run: RunDirectory
    state: TrainingState


def rankless(turns: Turns, recipe: str, drawn: bool = False) -> None:
    """Run the unchanged ``rankless.engine.loop.train``, with its journal.

    Args:
        turns: ends it.
        recipe: as JSON, its precision resolved.
        drawn: draw the images while training; else use micro-batches from memory.
    """
    hold_freed_memory()  # as every rank of a training does
    loaded = from_json(recipe)
    with ExitStack() as stack:
        stack.enter_context(computes_like(loaded))
        world = stack.enter_context(join())
        run = RunDirectory(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rankless-bench-"))))
        task = open_task(loaded)
        if not drawn:
            task, loaded = Ready(task, loaded), replace(loaded, workers=0)  # which nothing is left for

        def observe(step: int, state: TrainingState, scores: Scores | None) -> None:
            turns(step, Subject(task, loaded, world, run, state), scores)

        train(loaded, run, world, resume=False, task=task, observe=observe)


def threads(turns: Turns, recipe: str, size: int) -> None:
    """Run the same with ``size`` threads of this process as ranks, on CPUs."""
    hold_freed_memory()
    loaded, meeting, gate = from_json(recipe), Meeting(size), threading.Barrier(size)
    with ExitStack() as stack:
        stack.enter_context(computes_like(loaded))
        worlds = thread_ranks(meeting, [torch.device("cpu")] * size)
        run = RunDirectory(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rankless-bench-"))))
        tasks = [Ready(open_task(loaded), loaded) for _ in worlds]

        def work(world: World) -> None:
            torch.set_num_threads(loaded.threads)

            def observe(step: int, state: TrainingState, scores: Scores | None) -> None:
                if world.is_first:
                    turns(step, Subject(tasks[0], loaded, world, run, state), scores)
                gate.wait()  # nobody computes while others have their turn

            try:
                train(loaded, run, world, resume=False, task=tasks[world.rank], observe=observe)
            finally:
                gate.abort()
                meeting.leave(world.rank)

        others = [threading.Thread(target=_until_the_end, args=(work, world)) for world in worlds[1:]]
        for thread in others:
            thread.start()
        try:
            work(worlds[0])
        finally:
            for thread in others:
                thread.join()


def _until_the_end(work: Callable[[World], None], world: World) -> None:
    with suppress(threading.BrokenBarrierError):  # rank 0 has ended
        work(world)


def plain(turns: Turns, recipe: str, drawn: bool = False, compiled: bool = False) -> None:
    """Run :func:`bare.train` with the same input; ``compiled`` by ``torch.compile``."""
    loaded = from_json(recipe)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(loaded.threads)
    torch.backends.cudnn.benchmark = True
    task = open_task(loaded)
    batches: Iterator[DetectionBatch]
    if drawn:
        batches = bare.drawn(task, loaded, device)
    else:
        batches = itertools.cycle(ready_batches(task, loaded))
    bare.train(task, loaded, device, batches, turns, compiled=compiled)


def peak(turns: Turns, body: Callable[..., None], recipe: str, steps: int) -> None:
    """Measure the peak bytes of live tensors in ``steps`` steps of ``body``, weights included."""
    done: list[int] = []

    def count(step: int, subject: Any, scores: Any) -> None:
        done.append(step)
        if len(done) == steps:
            raise Finished

    seen = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)
    with seen, suppress(Finished):
        body(count, recipe)
    events = seen.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    turns.seconds = [max(itertools.accumulate(change for _, change in changes))]
    turns.pause(steps, None)


class Ready:
    """A task whose micro-batches were drawn and collated beforehand."""

    def __init__(self, task: Task, recipe: Recipe) -> None:
        self.task, self.recipe = task, recipe
        self.batches = ready_batches(task, recipe)  # the loader leaves pinned memory as it is

    def training_data(self) -> Numbers:
        """Return numbers in place of images."""
        return Numbers(self.recipe.data.train_images)

    def collate(self, items: Sequence[Any]) -> DetectionBatch:
        """Return a prepared batch; evaluation items already are a batch."""
        if isinstance(items[0], int):
            return self.batches[items[0] % len(self.batches)]
        batch: DetectionBatch = self.task.collate(items)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)


class Numbers:
    """A data set of numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def item(self, index: int, epoch: int) -> int:
        """Return the number."""
        return index


def ready_batches(task: Task, recipe: Recipe) -> list[DetectionBatch]:
    """Return the micro-batches of one step, in page-locked memory if there is a GPU."""
    data, size = task.training_data(), recipe.batch.micro
    starts = range(0, recipe.batch.images, size)
    batches = [task.collate([data.item(index, 0) for index in range(s, s + size)]) for s in starts]
    return [batch.pin_memory() for batch in batches] if torch.cuda.is_available() else batches
