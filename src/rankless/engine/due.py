"""What is due after a step: the journal, the best score, a checkpoint. Only rank 0 writes."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankless.engine.divergence import DivergedError
from rankless.engine.keeping import Kept
from rankless.engine.progress import Teller
from rankless.engine.state import TrainingState
from rankless.errors import UserError
from rankless.files.writing import write_atomically
from rankless.recipe.load import dump
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.runs.journal import Journal
from rankless.runs.saving import announced
from rankless.structures import Scores, Unreadable
from rankless.world.process_group import World, is_lost_peer


class Due:
    """Writes what a run leaves behind.

    Args:
        recipe: when to save and what to keep.
        run: where to.
        state: what is saved.
        class_names: written into the weights.
        world: the ranks.
        start: steps done already.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: RunDirectory,
        state: TrainingState,
        class_names: Sequence[str],
        world: World,
        start: int,
    ) -> None:
        self.recipe, self.run, self.state, self.world = recipe, run, state, world
        self.kept = Kept(recipe, run, state, class_names)
        self.saved, self.saved_at = start, time.monotonic()
        self.is_best = False
        self.journal: Journal | None = None
        self.teller: Teller | None = None

    def begin(self) -> None:
        """Call before the first step, on every rank: everything has been checked.

        ``recipe.yaml`` is brought up to date, and restored where a run that goes on has lost it;
        ``best`` is made to name what the state says.
        """
        if self.world.is_first and (self.saved or self.run.recipe.exists()):
            with told_if_not_written(self.run.recipe, self.run):
                write_atomically(self.run.recipe, dump(self.recipe))
        for warning in self.kept.begin() if self.world.is_first else ():
            self.event("warning", self.saved, warning)
        self.state.best = self.world.broadcast(self.state.best)

    def log(self, entry: dict[str, Any], seconds: float) -> None:
        """One step's line."""
        self._write(entry)
        if self.teller:
            self.teller.step(entry, seconds)

    def scored(self, step: int, scores: Scores, name: str) -> None:
        """One evaluation's line; the best weights so far are saved at once."""
        score = scores.get(name)
        best = self.state.best
        if isinstance(score, float) and math.isfinite(score) and (best is None or score > best["score"]):
            self.state.best, self.is_best = {"step": step, "score": score}, True
        self._write({"evaluation": step, "scores": scores})
        if self.teller:
            self.teller.scores(step, scores, self.is_best)

    def event(self, name: str, step: int, text: str) -> None:
        """Something that happened after ``step`` steps."""
        self._write({"event": name, "at": step, "text": text})
        if self.teller:
            self.teller.say(f"step {step}: {text}")

    def replaced(self, step: int, own: Sequence[Unreadable], *, scored: bool) -> None:
        """Images that could not be read in ``step``; every rank must call it with those it met.

        Args:
            step: done.
            own: this rank's.
            scored: whether an evaluation is due after the step.

        Raises:
            UserError: on every rank, the state saved, when there are more than ``data.max_bad`` allows.
        """
        for one in self.state.unreadable.meet(self.world, own):
            text = f"{one.path} cannot be read ({one.reason}); others are trained on in its place"
            self.event("unreadable", step, text)
        if faults := self.state.unreadable.too_many():
            self.state.unscored = scored
            with self.kept_if_it_diverges(step):
                self.state.check(step)
            self._keep(step)
            raise UserError(faults)

    def left_out(self, step: int, found: Sequence[Unreadable]) -> None:
        """Images that could not be read in the evaluation after ``step``, the same on every rank."""
        for one in self.state.unreadable.score(found):
            self.event("unreadable", step, f"{one.path} cannot be read ({one.reason}) and is not scored")

    def save(self, step: int, *, now: bool) -> None:
        """A checkpoint.

        Raises:
            UserError: it was asked for ``now`` and cannot be written; any other is tried again later.
        """
        self.is_best = False
        if not self.world.is_first:
            return
        removed: list[int] = []
        try:
            with announced(self.run):
                if self.journal:
                    self.journal.flush()
                removed = self.kept.save(step)
        except OSError as error:
            self._not_saved(step, error, fatal=now)
        self.saved, self.saved_at = step, time.monotonic()
        if removed:
            steps = ", ".join(map(str, removed))
            self.event("full disk", step, f"removed the checkpoints of the steps {steps} to make room")

    @contextmanager
    def kept_if_it_fails(self, step: int) -> Iterator[None]:
        """Inside, a fault in the evaluation after ``step`` costs no step: the state is saved first."""
        try:
            yield
        except UserError:
            self.state.unscored = True
            self._keep(step)
            raise

    def _keep(self, step: int) -> None:
        """Save what all ranks are about to end with; none leaves before it is written.

        The launcher ends the ranks that are left when one has ended.
        """
        self.save(step, now=True)
        try:
            self.world.barrier()
        except Exception as error:  # rank 0 could not save and has said so
            if not is_lost_peer(error):
                raise

    @contextmanager
    def kept_if_it_diverges(self, step: int) -> Iterator[None]:
        """Inside, what cannot be trained on costs no step: the state after ``step`` steps is saved first.

        Raises:
            UserError: on every rank, with the way on from the newest checkpoint.
        """
        try:
            yield
        except DivergedError as error:
            if error.is_whole and step > self.saved:
                self.save(step, now=True)  # the broadcast keeps the other ranks until it is written
            last = self.world.broadcast(self.run.pointed("last") if self.world.is_first else None)
            raise UserError([*error.faults, *self._way_on(last, repeats=error.repeats)]) from error

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

    def is_time(self, step: int) -> bool:
        """Whether the recipe asks for a checkpoint after ``step`` steps; rank 0 decides by its clock."""
        every = self.recipe.checkpoint.every
        if isinstance(every, int):
            return step % every == 0
        return time.monotonic() - self.saved_at >= 60 * float(every.removesuffix("min"))

    def _not_saved(self, step: int, error: OSError, *, fatal: bool) -> None:
        sentence = f"the checkpoint of step {step} could not be written ({error})"
        if fatal:
            raise UserError(
                f"{sentence}; {_remedy(error)} and go on from the newest one: "
                f"rankless train --resume --run {self.run.path}"
            ) from error
        if self.teller:
            self.teller.say(f"warning: {sentence}; training goes on, the next one is tried when it is due")
        self._write({"event": "not saved", "at": step, "text": str(error)})

    def _write(self, entry: dict[str, Any]) -> None:
        if self.journal is None:
            return
        with told_if_not_written(self.run.journal, self.run):
            self.journal.write(**entry)


@contextmanager
def told_if_not_written(path: Path, run: RunDirectory) -> Iterator[None]:
    """Inside, a file of the run that cannot be written is told in a sentence.

    Raises:
        UserError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error}): {_remedy(error)} and go on from the newest "
            f"checkpoint: rankless train --resume --run {run.path}"
        ) from error


def _remedy(error: OSError) -> str:
    """What to do about a file that could not be written."""
    closed = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    return "let this user write there" if closed else "make room"
