"""When the state is saved: by the clock, for the best score, and before a run ends. Only rank 0 writes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rankless.engine.divergence import DivergedError
from rankless.engine.retention import Retention
from rankless.engine.sinks.sink import Sinks
from rankless.engine.state import TrainingState
from rankless.errors import UserError, remedy
from rankless.files.writing import write_atomically
from rankless.recipe.load import dump
from rankless.recipe.schema import Recipe
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.runs.saving import announced
from rankless.structures import Scores
from rankless.world.process_group import World, is_lost_peer


class Saver:
    """Saves checkpoints and keeps track of the best one.

    Args:
        recipe: when to save and how many checkpoints stay.
        run: where to.
        state: what is saved.
        class_names: written into the weights.
        world: the ranks.
        sinks: take what happens to checkpoints.
        start: steps done already.

    Attributes:
        is_best: the newest scores are the best so far, and their weights are not saved yet.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: RunDirectory,
        state: TrainingState,
        class_names: Sequence[str],
        world: World,
        sinks: Sinks,
        start: int,
    ) -> None:
        self.recipe, self.run, self.state, self.world, self.sinks = recipe, run, state, world, sinks
        self.retention = Retention(recipe, run, state, class_names)
        self.saved, self.saved_at = start, time.monotonic()
        self.is_best = False

    def start(self) -> None:
        """Call before the first step, on every rank: everything has been checked.

        ``recipe.yaml`` is brought up to date, and restored where a resumed run has lost it; ``best`` is made
        to name the state's best step.
        """
        if self.world.is_first and (self.saved or self.run.recipe.exists()):
            with self.run.writing(self.run.recipe):
                write_atomically(self.run.recipe, dump(self.recipe))
        for warning in self.retention.start() if self.world.is_first else ():
            self.sinks.event("warning", self.saved, warning)
        self.state.best = self.world.broadcast(self.state.best)

    def is_due(self, step: int) -> bool:
        """Whether the recipe asks for a checkpoint after ``step`` steps; rank 0 decides by its clock."""
        every = self.recipe.checkpoint.every
        if isinstance(every, int):
            return step % every == 0
        return time.monotonic() - self.saved_at >= 60 * float(every.removesuffix("min"))

    def rank(self, step: int, scores: Scores, name: str) -> bool:
        """Whether the scores after ``step`` steps are the best so far, by their entry ``name``."""
        score, best = scores.get(name), self.state.best
        if isinstance(score, float) and math.isfinite(score) and (best is None or score > best["score"]):
            self.state.best, self.is_best = {"step": step, "score": score}, True
        return self.is_best

    def save(self, step: int, *, required: bool) -> None:
        """Write a checkpoint.

        Raises:
            UserError: it is ``required`` and cannot be written; any other is tried again later.
        """
        self.is_best = False
        if not self.world.is_first:
            return
        removed: list[int] = []
        try:
            with announced(self.run):
                journal.flush(self.run.journal)
                removed = self.retention.save(step)
        except OSError as error:
            self._report_failure(step, error, fatal=required)
        self.saved, self.saved_at = step, time.monotonic()
        if removed:
            steps = ", ".join(map(str, removed))
            self.sinks.event("full disk", step, f"removed the checkpoints of the steps {steps} to make room")

    def save_before_the_end(self, step: int) -> None:
        """Save what all ranks are about to end with; none leaves before it is written.

        The launcher ends the ranks that are left when one has ended.
        """
        self.save(step, required=True)
        try:
            self.world.barrier()
        except Exception as error:  # rank 0 could not save and has reported it
            if not is_lost_peer(error):
                raise

    @contextmanager
    def saving_on_error(self, step: int) -> Iterator[None]:
        """Inside, an error in the evaluation after ``step`` costs no step: the state is saved first."""
        try:
            yield
        except UserError:
            self.state.unscored = True
            self.save_before_the_end(step)
            raise

    @contextmanager
    def saving_on_divergence(self, step: int) -> Iterator[None]:
        """Inside, what cannot be trained on costs no step: the state after ``step`` steps is saved first.

        Raises:
            UserError: on every rank, with the way on from the newest checkpoint.
        """
        try:
            yield
        except DivergedError as error:
            if error.is_whole and step > self.saved:
                self.save(step, required=True)  # the other ranks wait for the broadcast until it is written
            last = self.world.broadcast(self.run.pointed("last") if self.world.is_first else None)
            raise UserError([*error.problems, *self._way_on(last, repeats=error.repeats)]) from error

    def _way_on(self, last: int | None, *, repeats: bool) -> list[str]:
        if not last:
            return []
        if not repeats:
            return [
                f"the checkpoint of step {last} is whole: go on from it with rankless train --resume --run "
                f"{self.run.path}"
            ]
        weights = self.run.step_directory(last) / "model.safetensors"
        return [
            f"the checkpoint of step {last} is whole; --resume would come to the same end, because it keeps "
            f"these keys, so start a new run from its weights with other values: model.pretrained={weights}"
        ]

    def _report_failure(self, step: int, error: OSError, *, fatal: bool) -> None:
        sentence = f"the checkpoint of step {step} could not be written ({error})"
        if fatal:
            raise UserError(
                f"{sentence}; {remedy(error)} and go on from the newest one: "
                f"rankless train --resume --run {self.run.path}"
            ) from error
        text = f"{sentence}; training goes on, the next one is tried when it is due"
        self.sinks.event("not saved", step, text)
