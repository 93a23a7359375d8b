"""Set up a run: check the task, compare the ranks, and create or restore the state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from rankless.data.loader import MicroBatches
from rankless.engine.environment import Environment, compare_ranks, record
from rankless.engine.loader_count import of_rank
from rankless.engine.mirrors import Mirrors, find
from rankless.engine.recompute import Checks
from rankless.engine.restoring import Restored, open_journal, restore
from rankless.engine.retention import check_disk_space
from rankless.engine.schedule import StepSchedule
from rankless.engine.sinks.csv_files import EpochTable
from rankless.engine.sinks.journal_sink import JournalCopy, JournalSink
from rankless.engine.sinks.notebook import NotebookSink
from rankless.engine.sinks.sink import RunStart, Sink, Sinks
from rankless.engine.sinks.terminal import Terminal
from rankless.engine.state import TrainingState
from rankless.engine.validation_loss import has_loss
from rankless.errors import UserError
from rankless.printing import is_notebook
from rankless.recipe.load import to_json
from rankless.recipe.schema import Recipe
from rankless.runs import chain, starts
from rankless.runs.directory import RunDirectory
from rankless.runs.journal import death, ending
from rankless.tasks.capabilities import capabilities
from rankless.tasks.checks import check_attributes, check_data
from rankless.tasks.protocol import Examples, Task
from rankless.world.process_group import World


@dataclass(frozen=True)
class DryRun:
    """A run of only ``steps`` steps. Evaluations use ``images`` images, or are skipped if this is 0."""

    steps: int
    images: int = 32


class Messages:
    """Collects pairs of an event and a text, which are shown to the user before the first step."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []

    def add(self, event: str, texts: Iterable[str]) -> None:
        """Add one message for each text."""
        self.pairs += [(event, text) for text in texts]

    def warn(self, *texts: str) -> None:
        """Add one warning for each text."""
        self.add("warning", texts)


@dataclass(frozen=True)
class Setup:
    """A run that is ready for its first step.

    Attributes:
        start, last: number of steps completed so far, and at the end of the run.
        messages: what the user should know before the first step.
        environment: digest of the facts of this rank's environment.
    """

    task: Task
    recipe: Recipe
    run: RunDirectory
    world: World
    mirrors: Mirrors
    dry_run: DryRun | None
    data: Examples
    schedule: StepSchedule
    state: TrainingState
    start: int
    last: int
    messages: Messages
    environment: str

    @property
    def checks(self) -> Checks:
        return Checks(self.recipe, self.world.size)

    def batches(self) -> MicroBatches[Any]:
        """Return a context manager for the micro-batches that this rank loads in all remaining steps."""
        return self._drawn(self.start, of_rank(self.recipe, self.world), attempt=0)

    def again(self, step: int) -> MicroBatches[Any]:
        """Return the micro-batches for a second attempt at ``step``, loading them in this process."""
        return self._drawn(step, 0, attempt=1)

    def _drawn(self, start: int, workers: int, *, attempt: int) -> MicroBatches[Any]:
        mine = self.world.own_micro_batches(self.recipe.batch.micro_batches)
        extra = partial(self.checks.extra, rank=self.world.rank, attempt=attempt)
        lines, pin = self.schedule.lines(start, mine, extra), self.world.device.type == "cuda"
        seed = self.recipe.seed
        return MicroBatches(self.data, self.task.collate, lines, workers=workers, seed=seed, pin_memory=pin)

    def sinks(self, users: Mapping[str, Callable[[], Sink]]) -> Sinks:
        """Start the journal, the terminal and the user's sinks, and send them all messages.

        Ranks other than rank 0 have only a copy of the journal, if any.
        """
        unscored, told = self.state.unscored, death(self.run.journal)  # the launcher wrote it only here
        journal, warnings = open_journal(self.mirrors, self.run, self.start, unscored=unscored)
        reason = told or ending(self.run.journal)
        self.messages.warn(*warnings)
        if not self.world.is_first:
            if not self.mirrors.is_writer:
                return Sinks()
            # The methods that a copy inherits ignore this rank's steps, scores and events.
            self.mirrors.journal = copy = JournalCopy(journal)  # type: ignore[abstract]
            return Sinks([copy])
        self.mirrors.journal = JournalSink(journal, self.run, copies=self.mirrors.several)
        workers = of_rank(self.recipe, self.world)
        if self.dry_run:
            sinks = Sinks([self.mirrors.journal], users)
        else:
            terminal = Terminal(
                self.recipe.batch.images,
                self.world.device.type,
                workers,
                in_threads=self.world.transport.in_process,
                scores=_known_scores(self.task) if self.recipe.data.val != "none" else (),
                has_bar=not is_notebook(),
            )
            guarded: dict[str, Callable[[], Sink]] = {"epochs.csv": EpochTable, **users}
            if is_notebook():
                guarded = {"curves": NotebookSink, **guarded}
            sinks = Sinks([self.mirrors.journal, terminal], guarded, terminal.progress)
        try:
            recipe = json.loads(to_json(self.recipe))
            size = self.world.size
            sinks.start(RunStart(self.run.path, recipe, self.start, self.last, size, reason, unscored))
            for name, text in self.messages.pairs:
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
    """Check and create everything that a run needs. See :func:`rankless.engine.loop.train`."""
    messages = Messages()
    data = _checked_data(task, recipe, messages)
    digest = capabilities(data).digest
    environment, differences = compare_ranks(world, recipe, digest)
    schedule = StepSchedule(recipe, len(data))
    state = TrainingState(task, recipe, world, len(data))
    state.data = digest
    mirrors = find(world, run)
    restored = restore(mirrors, run, recipe, task.class_names) if resume else Restored(None, [], [])
    if restored.snapshot:
        state.restore(restored.snapshot, str(run.step_directory(restored.snapshot.step)))
    start = restored.snapshot.step if restored.snapshot else 0
    messages.warn(*restored.warnings, *mirrors.problems, *state.warnings, *differences)
    if not start:  # afterwards, the file of pretrained weights may be missing
        messages.add("pretrained", state.start_from_pretrained())
    messages.warn(*check_disk_space(run, state, mirrors, start))
    if resume:
        messages.warn(*_share_record(run, mirrors))
    _record_start(run, mirrors, environment, start, launched, messages)
    messages.warn(*schedule.warnings(), *getattr(task, "warnings", ()))
    if recipe.precision == "fp16" and world.device.type == "cpu":
        messages.warn("precision is fp16, but it is slow on CPUs; use auto to choose bf16 or fp32")
    if recipe.compute == "compiled" and world.device.type == "cuda":
        messages.warn(
            "compute is 'compiled', and equal weights for several numbers of ranks have been shown only on "
            "CPUs; run `rankless verify` on these GPUs"
        )
    messages.add("copy", restored.copied)
    state.check(start)
    last = min(dry_run.steps, schedule.steps) if dry_run else schedule.steps
    facts = chain.digest_of(starts.facts(environment))
    return Setup(
        task, recipe, run, world, mirrors, dry_run, data, schedule, state, start, last, messages, facts
    )


def _checked_data(task: Task, recipe: Recipe, messages: Messages) -> Examples:
    """Return the training data after checking the task and the data of both splits.

    The evaluation data is also checked, to report its errors before hours of training.
    """
    check_attributes(task)
    data = task.training_data()
    check_data(task, "training_data", data)
    of_evaluation: tuple[str, ...] = ()
    if recipe.data.val != "none":
        evaluated = task.evaluation_data()
        check_data(task, "evaluation_data", evaluated)
        of_evaluation = capabilities(evaluated).notes
    if about := _about_the_data(capabilities(data).notes, of_evaluation):
        messages.add("note", [about])
    return data


def _record_start(
    run: RunDirectory,
    mirrors: Mirrors,
    environment: Environment,
    start: int,
    launched: Mapping[str, Any],
    messages: Messages,
) -> None:
    """Record this start and its environment in the run directory and its copies."""
    world = mirrors.world
    if world.is_first:
        try:
            with run.writing(run.environment):
                messages.warn(*record(run.environment, environment, world, start, launched))
        except UserError as error:
            if not mirrors.several:
                raise
            messages.warn(*error.problems)
    with suppress(OSError):  # reported during the run
        mirrors.send_file(run.environment, 0)


def _known_scores(task: Task) -> list[str]:
    names = getattr(task, "score_names", ())
    return [*(["loss"] if has_loss(task) else []), *names] if isinstance(names, tuple) and names else []


def _about_the_data(training: Sequence[str], evaluation: Sequence[str]) -> str:
    """Join the notes about both splits, one per line. A note about both of them appears only once."""
    lines = [
        *(note for note in training if note in evaluation),
        *(f"training: {note}" for note in training if note not in evaluation),
        *(f"evaluation: {note}" for note in evaluation if note not in training),
    ]
    return f"the data: {lines[0]}" if len(lines) == 1 else "\n  ".join(["the data", *lines]) if lines else ""


def _share_record(run: RunDirectory, mirrors: Mirrors) -> list[str]:
    """Replace all copies of the record of starts with the most complete one, and return messages."""
    entries, problem = starts.read(run.environment)
    try:
        said = mirrors.send_best(run.environment, [-1 if problem else len(entries)])
    except OSError as error:
        said = [f"{run.environment} cannot be written ({error})"]
    return mirrors.gather_messages(said)
