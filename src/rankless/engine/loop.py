"""The training loop: draw, forward, backward, reduce, clip, step, average, and then what is due."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from rankless.data.loader import micro_batches
from rankless.engine import checkpoint
from rankless.engine.due import Due, told_if_not_written
from rankless.engine.evaluate import Stopped, evaluate
from rankless.engine.keeping import check_room
from rankless.engine.layer_errors import explained
from rankless.engine.optim import rate, set_rate
from rankless.engine.progress import Teller
from rankless.engine.schedule import Plan
from rankless.engine.state import TrainingState
from rankless.engine.surroundings import agree, record
from rankless.engine.totals import Numbers, Wishes
from rankless.engine.waiting import Waiting
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.runs.journal import Journal, ending
from rankless.structures import Scores
from rankless.tasks import open_task
from rankless.tasks.checks import check_attributes, check_data
from rankless.tasks.protocol import Task
from rankless.world.process_group import World
from rankless.world.stopping import SharedStop

Observer = Callable[[int, TrainingState, Scores | None], None]


@dataclass(frozen=True)
class DryRun:
    """A run that ends early: the first steps of a recipe, with evaluations of a few images in between.

    Attributes:
        steps: how many.
        images: how many are predicted in an evaluation.
    """

    steps: int
    images: int = 32


class StopRequest:
    """Whether somebody asked this process to stop; the step under way is finished and saved first.

    Attributes:
        signal: the signal that came, 0 without one.
    """

    def __init__(self) -> None:
        self.signal = 0

    def listen(self) -> None:
        """From now on SIGTERM and SIGINT are requests."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            signal.signal(number, self._note)
        # A launcher blocks them until here, so that none comes while nobody listens.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def _note(self, number: int, _: object) -> None:
        self.signal = self.signal or number


def train(
    recipe: Recipe,
    run: RunDirectory,
    world: World,
    *,
    resume: bool,
    launched: Mapping[str, Any] | None = None,
    task: Task | None = None,
    stop: StopRequest | None = None,
    dry_run: DryRun | None = None,
    observe: Observer | None = None,
) -> bool:
    """Train a recipe as one of the ranks of ``world``.

    Args:
        recipe: with its precision resolved.
        run: where everything is written, by rank 0 alone.
        resume: go on from the newest whole checkpoint, if there is one.
        launched: what the launcher says of this start, for the record: when, and with which command.
        task: None opens the one that the recipe names.
        stop: looked at after every step, and before every batch of an evaluation.
        rehearsal: end early.
        observe: called on every rank after every step, with the scores where it was evaluated; must not
            change a thing.

    Returns:
        Whether all steps are done; False after a stop request, when the state was saved.

    Raises:
        UserError: a faulty task, faulty data, weights or a checkpoint that do not fit, a loss that is no
            number, a full disk.
    """
    task = task or open_task(recipe)
    stop = stop or StopRequest()
    check_attributes(task)
    # The evaluation data too, so that its faults are told now and not after hours of training.
    data, evaluated = task.training_data(), task.evaluation_data()
    check_data(task, "training_data", data)
    check_data(task, "evaluation_data", evaluated)
    notes = [note for known in (data, evaluated) for note in getattr(known, "notes", ())]
    digest = getattr(data, "digest", None)
    surroundings, unlike = agree(world, recipe, digest)
    plan = Plan(recipe, len(data))
    state = TrainingState(task, recipe, world, len(data))
    state.data = digest
    start, warnings = _restore(state, run, world, resume)
    warnings += state.warnings
    # Weights of another run matter at the very beginning alone: later the file may be gone.
    told = [] if start else state.start_from_pretrained()
    last = min(dry_run.steps, plan.steps) if dry_run else plan.steps
    if warning := check_room(run, recipe, state, world, start):
        warnings.append(warning)
    if world.is_first:
        with told_if_not_written(run.environment, run):
            warnings += [*unlike, *record(run.environment, surroundings, world, start, launched or {})]
    due = Due(recipe, run, state, task.class_names, world, start)
    state.check(start)
    facts = getattr(data, "facts", None)
    samples = plan.images_of(start, world.own_micro_batches(recipe.batch.micro_batches))
    with (
        Teller(last, start, recipe.batch.images, speaks=world.is_first and not dry_run) as teller,
        micro_batches(
            data, task.collate, samples, workers=recipe.workers, pin_memory=world.device.type == "cuda"
        ) as batches,
        _journal(run, world, start, notes, warnings, told, teller) as journal,
    ):
        due.journal, due.teller = journal, teller
        due.begin()
        waiting, asked = Waiting(), SharedStop(world, lambda: bool(stop.signal))
        limit = dry_run.images if dry_run else None

        def scores_after(done: int) -> Scores | None:
            """None when a request to stop came before all was predicted."""
            told = partial(due.left_out, done)
            try:
                return evaluate(task, state.scored, recipe, world, limit=limit, unreadable=told, stop=asked)
            except Stopped:
                return None

        def stopped(done: int) -> bool:
            due.event("stop", done, waiting.summary())
            return False

        if state.unscored:  # the evaluation after this step failed, or was stopped
            scores = scores_after(start)
            if scores is None:
                return stopped(start)
            due.scored(start, scores, task.score_name)
            state.unscored = False
            due.save(start, now=True)
        state.training_mode()
        for step in range(start, last):
            began, waited = time.perf_counter(), batches.waited
            if state.begin(step):
                due.event("release", step, "the backbone is trained from here on")
            lr = recipe.optim.lr * rate(recipe.schedule, step, plan.steps)
            set_rate(state.optimizer, lr)
            done = step + 1
            wishes = Wishes(stop=bool(stop.signal), save=world.is_first and due.is_time(done))
            with explained(recipe):
                totals = state.passes.run(step, batches, state.scaler.scale, wishes)
            with due.kept_if_it_diverges(step):
                numbers = state.update(step, totals)

            stopping = bool(numbers.stop)
            entry = _entry(done, plan, lr, numbers)
            entry |= facts(step) if callable(facts) else {}
            seconds = time.perf_counter() - began
            entry["timing"] = {
                "seconds": round(seconds, 4),
                "waited": round((batches.waited - waited) / seconds, 3),
            }
            due.log(entry, seconds)
            if advice := waiting.step(seconds, batches.waited - waited):
                due.event("waiting", done, advice)
            scored = plan.is_evaluated(done) or bool(dry_run and done in (last // 2, last))
            if "replaced" in entry:
                due.replaced(done, totals.unreadable, scored=scored)
            scores = None
            saving = numbers.save or stopping or done == last
            if (scored or saving) and not dry_run:  # which is compared tensor by tensor, and goes on
                with due.kept_if_it_diverges(done):
                    state.check(done)
            if scored and not stopping:
                with due.kept_if_it_fails(done):
                    scores = scores_after(done)
                state.training_mode()
                if scores is not None:
                    due.scored(done, scores, task.score_name)
                stopping = asked.agreed()  # the request may have come while rank 0 scored
            state.unscored = scored and scores is None
            if saving or stopping or due.is_best:
                due.save(done, now=done == last or stopping)
            if observe:
                observe(done, state, scores)
            if stopping and (done < last or state.unscored):
                return stopped(done)
        if start < last:
            due.event("end", last, waiting.summary())
    return True


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
                "the training data is not what this run began with: boxes, classes or sizes of images "
                "differ, so the weights will not be those of a run from the start"
            )
    return step or 0, warnings


@contextmanager
def _journal(
    run: RunDirectory,
    world: World,
    start: int,
    notes: list[str],
    warnings: list[str],
    told: list[str],
    teller: Teller,
) -> Iterator[Journal | None]:
    """The journal on rank 0, None elsewhere."""
    for note in notes:
        teller.say(f"note: {note}")
    for warning in warnings:
        teller.say(f"warning: {warning}")
    for sentence in told:
        teller.say(sentence)
    if start:
        teller.say(f"going on after step {start}")
    if not world.is_first:
        yield None
        return
    reason = ending(run.journal)
    with told_if_not_written(run.journal, run):
        journal = Journal(run.journal, start)
    if journal.left_out:
        warnings.append(
            f"{run.journal}: {journal.left_out} damaged lines were left out; as it was it is now "
            f"{journal.original}"
        )
        teller.say(f"warning: {warnings[-1]}")
    try:
        with told_if_not_written(run.journal, run):
            for warning in [*notes, *warnings]:
                journal.write(event="warning", text=warning)
            for sentence in told:
                journal.write(event="pretrained", text=sentence)
            why = {"reason": reason} if reason else {}
            journal.write(event="resume" if start else "start", at=start, world_size=world.size, **why)
        yield journal
    finally:
        journal.close()


def _entry(done: int, plan: Plan, lr: float, numbers: Numbers) -> dict[str, Any]:
    """The journal's line of one step."""
    entry: dict[str, Any] = {"step": done, "epoch": round(plan.epoch(done), 6), "lr": lr}
    entry["loss"] = numbers.mean_loss
    entry["parts"] = {name: value / (numbers.count or 1.0) for name, value in numbers.parts.items()}
    entry["count"] = numbers.count
    if numbers.replaced:
        entry["replaced"] = numbers.replaced
    if numbers.skipped:
        entry["skipped"] = True
    else:
        entry["gradient_norm"] = numbers.gradient_norm
    return entry
