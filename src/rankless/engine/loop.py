"""The training loop."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rankless.data.loader import MicroBatches
from rankless.engine.clock import SAVING, Clock, StepTime
from rankless.engine.data_sums import DataSums
from rankless.engine.evaluate import Stopped, evaluate, fingerprint
from rankless.engine.layer_errors import explained
from rankless.engine.recompute import SilentErrorCheck
from rankless.engine.reporting import Reporting
from rankless.engine.saver import Origin, Saver, is_usable
from rankless.engine.schedule import momentum, rate, set_momentum, set_rate
from rankless.engine.setup import DryRun, Setup, prepare
from rankless.engine.sinks.sink import Sink, Sinks
from rankless.engine.state import TrainingState
from rankless.engine.stragglers import Stragglers
from rankless.engine.totals import Flags, Numbers, Totals
from rankless.engine.validation_loss import has_loss
from rankless.engine.waiting import Waiting
from rankless.engine.watchdog import Pulse, Watchdog
from rankless.errors import UserError, nearest, one_of
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.structures import Scores, Unreadable
from rankless.tasks import open_task
from rankless.tasks.capabilities import capabilities
from rankless.tasks.protocol import Task
from rankless.world.notes import SharedStop
from rankless.world.process_group import World

Observer = Callable[[int, TrainingState, Scores | None], None]


class StopRequest:
    """A request to stop this process after the current step is finished and saved.

    ``signal`` is the number of the first received signal, or 0 if there is none.
    """

    def __init__(self) -> None:
        self.signal = 0

    def listen(self) -> None:
        """From now on, treat SIGTERM, SIGINT and SIGUSR1 as requests to stop."""
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
        for number in numbers:
            signal.signal(number, self._note)
        # The launcher has blocked these signals, so that none arrives before its handler is set.
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
    sinks: Mapping[str, Callable[[], Sink]] | None = None,
    pulse: Pulse | None = None,
) -> bool:
    """Train a recipe as one rank of ``world``, and return whether all steps are done.

    Otherwise, the run was stopped on request, and its state was saved. The recipe's precision must already
    be resolved.

    Args:
        run: the run directory, written by rank 0. On every machine that does not share its files, one rank
            writes a copy.
        launched: the launcher's record of this start, with its time and command.
        stop: checked after every step, and before every batch of an evaluation.
        observe: called on every rank after every step, with the scores if the step was evaluated. It must not
            change anything.
        sinks: functions that create the user's sinks, by name. They are called only on rank 0.
        pulse: called every second with this rank's progress.
    """
    task = task or open_task(recipe)
    setup = prepare(task, recipe, run, world, resume=resume, launched=launched or {}, dry_run=dry_run)
    with ExitStack() as stack:
        opened = stack.enter_context(closing(setup.sinks(sinks or {})))
        reporting = Reporting(setup.task, run, opened, enabled=world.is_first and dry_run is None)
        stack.callback(reporting.close)  # before the sinks close, however the run ends
        batches = stack.enter_context(setup.batches())
        origin = None
        if dry_run is None:
            files = capabilities(setup.data).files
            sums = stack.enter_context(closing(DataSums(run.data_sums, files))) if world.is_first else None
            origin = Origin(setup.environment, sums)
        loop = _Loop(setup, batches, opened, stop or StopRequest(), observe, reporting, pulse, origin)
        with closing(loop.saver), loop.watchdog:
            return loop.run()


class _Loop:
    def __init__(
        self,
        setup: Setup,
        batches: MicroBatches[Any],
        sinks: Sinks,
        stop: StopRequest,
        observe: Observer | None,
        reporting: Reporting,
        pulse: Pulse | None,
        origin: Origin | None,
    ) -> None:
        self.reporting = reporting
        self.setup, self.batches, self.sinks, self.stop, self.observe = setup, batches, sinks, stop, observe
        self.recipe, self.state, self.world = setup.recipe, setup.state, setup.world
        self.saver = Saver(setup.run, self.state, sinks, setup.start, setup.mirrors, origin)
        # Only our own launcher passes a pulse, and it can start fewer ranks.
        can_exclude = pulse is not None and self.world.size > 1
        self.silent_errors = SilentErrorCheck(
            setup.checks, self.state, setup.again, sinks.event, can_exclude=can_exclude, start=setup.start
        )
        self.facts = capabilities(setup.data).facts
        late = partial(sinks.urgent_event, "late")
        self.clock = Clock(self.world.transport.waits, batches)
        self.watchdog = Watchdog(self.world, self.clock, late, pulse)
        mine = self.world.own_micro_batches(self.recipe.batch.micro_batches)
        self.stragglers = Stragglers(self.world, len(mine))
        self.shared_stop = SharedStop(self.world, lambda: bool(stop.signal))
        self.waiting = Waiting(self.recipe.batch.images)
        self.has_warned = False

    def run(self) -> bool:
        """Train until the last step or a request to stop, and return whether all steps are done."""
        state, start, last = self.state, self.setup.start, self.setup.last
        self.saver.start()
        if state.unscored:
            if self._evaluate(start) is None:
                return self._stopped(start)
            state.unscored = False
            self.saver.save(start, required=True)
        state.training_mode()
        for step in range(start, last):
            done = step + 1
            numbers = self._train_step(step)
            stopping, is_evaluated = bool(numbers.stop), self._is_evaluated(done)
            saving = numbers.save or stopping or done == last
            if is_evaluated or saving:
                self.clock.begin(SAVING, done, self.saver.slowest)
                self.saver.settle()
                self._check(done)
                for text in self.stragglers.compare():
                    self.sinks.event("slow", done, text)
            if step == start or is_evaluated or saving:
                self.stragglers.gather_use()
            scores = None
            if is_evaluated and not stopping:
                with self.saver.saving_on_error(done):
                    scores = self._evaluate(done)
                state.training_mode()
                stopping = self.shared_stop.agreed()  # a request may have arrived while rank 0 was scoring
            state.unscored = is_evaluated and scores is None
            if saving or stopping or self.saver.is_best:
                self.clock.begin(SAVING, done, self.saver.slowest)
                self.saver.save(done, required=done == last or stopping)
            if self.observe:
                self.observe(done, state, scores)
            if stopping and (done < last or state.unscored):
                return self._stopped(done)
        if start < last:
            self.sinks.event("end", last, self._summary())
        self.saver.finish()
        return True

    def _train_step(self, step: int) -> Numbers:
        state, saver = self.state, self.saver
        self.clock.begin("computing", step + 1)
        if state.begin(step):
            self.sinks.event("release", step, "the backbone is trained from now on")
        lr = self._set_rate(step)
        flags = Flags(stop=bool(self.stop.signal), save=self.world.is_first and saver.is_due(step + 1))
        is_checked = self.setup.checks.is_due(step)
        run = self.silent_errors.run if is_checked else state.compute  # draw, compute, reduce
        with saver.saving_on_divergence(step):
            with explained(self.recipe):
                totals = run(step, self.batches, flags)
            numbers = update(state, step, totals)
        took = self.clock.since_begin()
        self.stragglers.add(took, more=int(is_checked))
        self.clock.begin("logging", step + 1)  # also in the user's sinks
        self._log(step, lr, numbers, took)
        saver.poll()
        if numbers.has_new:
            self.sinks.event("note", step + 1, state.others.sentence())
        if numbers.replaced:
            self._report_replaced(step + 1, totals.unreadable)
        return numbers

    def _set_rate(self, step: int) -> float:
        """Set the learning rate and the momentum of a step, and return the learning rate."""
        optimizer, recipe, schedule = self.state.optimizer, self.recipe.optim, self.setup.schedule
        lr = recipe.lr * rate(schedule, step)
        set_rate(optimizer, lr)
        set_momentum(optimizer, recipe, momentum(schedule, step))
        return lr

    def _log(self, step: int, lr: float, numbers: Numbers, took: StepTime) -> None:
        done = step + 1
        timing = took.entry() | self.stragglers.take()
        self.sinks.step(
            {
                "step": done,
                "epoch": round(self.setup.schedule.epoch(done), 6),
                "lr": lr,
                **numbers.entry(),
                **self.facts(step),
                "timing": timing,
            }
        )
        if advice := self.waiting.step(timing):
            self.sinks.event("waiting", done, advice)

    def _report_replaced(self, done: int, mine: Sequence[Unreadable]) -> None:
        """Report the images that could not be read. All ranks must call this with their own images."""
        for one in self.state.unreadable.meet(self.world, mine):
            text = f"{one.path} cannot be read ({one.reason}); other images are used instead"
            self.sinks.event("unreadable", done, text)
        if errors := self.state.unreadable.too_many():
            self.state.unscored = self._is_evaluated(done)
            self._check(done)
            self.saver.save_before_the_end(done)
            raise UserError(errors)

    def _is_evaluated(self, done: int) -> bool:
        dry_run, last = self.setup.dry_run, self.setup.last
        if dry_run and not dry_run.images:
            return False
        if dry_run and self.recipe.data.val != "none" and done in (last // 2, last):
            return True
        return self.setup.schedule.is_evaluated(done)

    def _check(self, done: int) -> None:
        """Check that the weights are finite and the same on every rank, except in a dry run."""
        if not self.setup.dry_run:
            with self.saver.saving_on_divergence(done):
                self.state.check(done)

    def _evaluate(self, done: int) -> Scores | None:
        """Return the scores after ``done`` steps, or None if the evaluation was stopped on request."""
        task, dry_run = self.setup.task, self.setup.dry_run

        def report(images: Sequence[Unreadable]) -> None:
            for one in self.state.unreadable.score(images):
                text = f"{one.path} cannot be read ({one.reason}) and is not scored"
                self.sinks.event("unreadable", done, text)

        try:
            scores = evaluate(
                task,
                self.state.scored,
                self.recipe,
                self.world,
                limit=dry_run.images if dry_run else None,
                unreadable=report,
                stop=self.shared_stop,
                phase=lambda phase: self.clock.begin(phase, done),
                progress=partial(self.sinks.progress, "evaluating"),
                keep=self.reporting.keep,
            )
        except Stopped:
            return None
        name = self._best(scores)
        self.sinks.scores(done, scores, self.saver.rank(done, scores, name))
        best = self.state.best
        self._warn_of_unusable(done, scores, name)
        self.reporting.evaluated(done, is_best=best is None or best["step"] == done)
        return scores

    def _warn_of_unusable(self, done: int, scores: Scores, name: str) -> None:
        """Report a validation loss and, once, a score ``name`` that cannot select the best weights."""
        best = self.state.best
        kept = (
            f"the best weights are still from step {best['step']}"
            if best
            else "there are no best weights yet"
        )
        if has_loss(self.setup.task) and scores.get("loss", 0.0) is None:
            text = f"the validation loss after step {done} is not finite and is ignored"
            self.sinks.event("warning", done, f"{text}; {kept}" if name == "loss" else text)
        elif not self.setup.dry_run and not self.has_warned and not is_usable(scores.get(name)):
            self.has_warned = True
            text = f"the score '{name}' after step {done} is not a finite number and is ignored"
            self.sinks.event("warning", done, f"{text}; {kept}")

    def _best(self, scores: Scores) -> str:
        """Return the name of the score that selects the best weights."""
        best = self.recipe.evaluate.best
        if best == "auto" or self.setup.dry_run:
            return self.setup.task.score_name
        numbers = [name for name, value in scores.items() if isinstance(value, float | None)]
        if best not in numbers:
            known = ["auto", *numbers]
            raise UserError(f"evaluate.best is '{best}': expected {one_of(known)}{nearest(best, known)}")
        return best

    def _stopped(self, done: int) -> bool:
        self.sinks.event("stop", done, self._summary())
        self.saver.finish()
        return False

    def _summary(self) -> str:
        return f"{self.waiting.summary()}{self.silent_errors.summary()}"


def update(state: TrainingState, step: int, totals: Totals) -> Numbers:
    """Update the weights, running statistics and EMA from the summed gradients.

    This waits for the device once, after clipping the gradient.
    """
    numbers = state.clip(step, totals)
    skipped = state.step(numbers)
    state.statistics.end(None if skipped else totals.statistics, has_new=numbers.has_new)
    if state.ema:
        state.ema.update(step)
    return replace(numbers, skipped=skipped)


class Trace:
    """An observer that writes one line per step: ``{"step": …, "tensors": {name: digest}, "scores": …}``."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", encoding="utf-8")

    def __call__(self, step: int, state: TrainingState, scores: Scores | None) -> None:
        tensors = {name: fingerprint(value) for name, value in state.tensors().items()}
        entry = {"step": step, "tensors": tensors, "scores": scores}
        self.file.write(json.dumps(entry) + "\n")
        self.file.flush()
