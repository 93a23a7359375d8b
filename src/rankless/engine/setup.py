"""Before the first step: check the task, compare the ranks, make or restore the state, open the sinks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rankless.data.loader import MicroBatches
from rankless.engine import checkpoint
from rankless.engine.environment import compare_ranks, record
from rankless.engine.retention import check_disk_space
from rankless.engine.schedule import StepSchedule
from rankless.engine.sinks.journal import JournalSink
from rankless.engine.sinks.sink import RunStart, Sink, Sinks
from rankless.engine.sinks.terminal import Terminal
from rankless.engine.state import TrainingState
from rankless.recipe.load import to_json
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.runs.journal import Journal, ending
from rankless.tasks.capabilities import capabilities
from rankless.tasks.checks import check_attributes, check_data
from rankless.tasks.protocol import Examples, Task
from rankless.world.process_group import World


@dataclass(frozen=True)
class DryRun:
    """A run that ends early: the first steps of a recipe, with evaluations of a few images in between.

    Attributes:
        steps: how many.
        images: how many are predicted in an evaluation.
    """

    steps: int
    images: int = 32


@dataclass(frozen=True)
class Setup:
    """A run that is ready for its first step.

    Attributes:
        task, recipe, run, world, dry_run: as for :func:`rankless.engine.loop.train`.
        data: what is trained on.
        schedule: what every step is.
        state: made, or restored from the newest checkpoint.
        start, last: steps done already, and steps done at the end.
        messages: (event, text) for a person, before the first step.
    """

    task: Task
    recipe: Recipe
    run: RunDirectory
    world: World
    dry_run: DryRun | None
    data: Examples
    schedule: StepSchedule
    state: TrainingState
    start: int
    last: int
    messages: list[tuple[str, str]]

    def batches(self) -> MicroBatches[Any]:
        """This rank's micro-batches of all steps to come; a context manager."""
        return MicroBatches(
            self.data,
            self.task.collate,
            self.schedule.lines(self.start, self.world.own_micro_batches(self.recipe.batch.micro_batches)),
            workers=self.recipe.workers,
            pin_memory=self.world.device.type == "cuda",
        )

    def sinks(self, users: Mapping[str, Callable[[], Sink]]) -> Sinks:
        """The journal, the terminal and the users' sinks, started, with all messages; empty on other ranks.

        Raises:
            UserError: the journal cannot be written.
        """
        if not self.world.is_first:
            return Sinks()
        reason = ending(self.run.journal)
        with self.run.writing(self.run.journal):
            journal = Journal(self.run.journal, self.start)
        if journal.left_out:
            self.messages.append(
                (
                    "warning",
                    f"{self.run.journal}: {journal.left_out} damaged lines were left out; the file as it was "
                    f"is now {journal.original}",
                )
            )
        shown = [] if self.dry_run else [Terminal(self.recipe.batch.images, self.world.device.type)]
        sinks = Sinks([JournalSink(journal, self.run), *shown], users)
        try:
            recipe = json.loads(to_json(self.recipe))
            sinks.start(RunStart(self.run.path, recipe, self.start, self.last, self.world.size, reason))
            for name, text in self.messages:
                sinks.event(name, self.start, text)
        except BaseException:
            sinks.close()
            raise
        return sinks


def prepare(
    task: Task,
    recipe: Recipe,
    run: RunDirectory,
    world: World,
    *,
    resume: bool,
    launched: Mapping[str, Any],
    dry_run: DryRun | None,
) -> Setup:
    """Check and make everything that a run needs; arguments and errors as for ``train``."""
    check_attributes(task)
    # The evaluation data too, so that its errors show now and not after hours of training.
    data, evaluated = task.training_data(), task.evaluation_data()
    check_data(task, "training_data", data)
    check_data(task, "evaluation_data", evaluated)
    messages = [("note", note) for known in (data, evaluated) for note in capabilities(known).notes]
    digest = capabilities(data).digest
    environment, differences = compare_ranks(world, recipe, digest)
    schedule = StepSchedule(recipe, len(data))
    state = TrainingState(task, recipe, world, len(data))
    state.data = digest
    start, warnings = _restore(state, run, world, resume)
    warnings += state.warnings
    # Weights of another run matter at the very beginning alone: later the file may be gone.
    pretrained = [] if start else state.start_from_pretrained()
    if warning := check_disk_space(run, recipe, state, world, start):
        warnings.append(warning)
    if world.is_first:
        with run.writing(run.environment):
            warnings += [*differences, *record(run.environment, environment, world, start, launched)]
    warnings += schedule.warnings()
    messages += [("warning", text) for text in warnings] + [("pretrained", text) for text in pretrained]
    state.check(start)
    last = min(dry_run.steps, schedule.steps) if dry_run else schedule.steps
    return Setup(task, recipe, run, world, dry_run, data, schedule, state, start, last, messages)


def _restore(state: TrainingState, run: RunDirectory, world: World, resume: bool) -> tuple[int, list[str]]:
    """Go on where the newest whole checkpoint stands, the same one on every rank."""
    warnings: list[str] = []
    step: int | None = None
    if resume:
        step = world.broadcast(checkpoint.newest(run, warnings.append) if world.is_first else None)
    if step is not None:
        state.restore(checkpoint.load(run, step), str(run.step_directory(step)))
        if state.other_data:
            warnings.append(
                "the dataset changed since this run started (boxes, classes or image sizes); the final "
                "weights will differ from those of an uninterrupted run"
            )
    return step or 0, warnings
