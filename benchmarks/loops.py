"""The measured loops as bodies of contenders: Rankless itself, and the plain one."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rankless.engine.loop import train
from rankless.engine.state import TrainingState
from rankless.hardware.compute_device import compute_device
from rankless.hardware.computing import computes_like
from rankless.hardware.heap import hold_freed_memory
from rankless.launch.planning.bare_process import BareLoop
from rankless.recipe.load import from_json
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.structures import Scores
from rankless.tasks import open_task
from rankless.tasks.protocol import Batch, Task
from rankless.world.process_group import World, join
from turns import Turns


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


def plain(turns: Turns, recipe: str, compiled: bool = False) -> None:
    """Run the plain loop of ``rankless benchmark`` on images in memory; ``compiled`` by ``torch.compile``.

    A step is one forward and backward pass per micro-batch, with any kernel, on one device.
    """
    loaded = replace(from_json(recipe), reduce="fast")
    loop = BareLoop(loaded, compute_device())
    if compiled:
        loop.model.compile()
    with computes_like(loaded):
        for step in itertools.count(1):
            loop.step(loaded.batch.micro, loaded.precision)
            turns(step, loop.model, None)


class Ready:
    """A task whose micro-batches were drawn and collated beforehand."""

    def __init__(self, task: Task, recipe: Recipe) -> None:
        self.task, self.recipe = task, recipe
        self.batches = ready_batches(task, recipe)  # the loader leaves pinned memory as it is

    def training_data(self) -> Numbers:
        """Return numbers in place of images."""
        return Numbers(self.recipe.data.train_images)

    def collate(self, items: Sequence[Any]) -> Batch:
        """Return a prepared batch; evaluation items already are a batch."""
        prepared = isinstance(items[0], int)
        return self.batches[items[0] % len(self.batches)] if prepared else self.task.collate(items)

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


def ready_batches(task: Task, recipe: Recipe) -> list[Batch]:
    """Return the micro-batches of one step, in page-locked memory if there is a GPU."""
    data, size = task.training_data(), recipe.batch.micro
    starts = range(0, recipe.batch.images, size)
    batches: list[Any] = [task.collate([data.item(index, 0) for index in range(s, s + size)]) for s in starts]
    return [batch.pin_memory() for batch in batches] if torch.cuda.is_available() else batches
