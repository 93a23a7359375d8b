"""Save the state at the recipe's intervals, for the best score, and before a run ends.

Rank 0 writes a checkpoint, and so does one rank on every other machine with a copy of the run directory. They
write a copy of the state in a thread while training continues. The next save, the next evaluation and the end
of the run wait for the thread. If there are several copies of the run directory, all ranks participate in a
save: rank 0 sends the lines of the journal, and every copy reports its outcome at the next exchange.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard

from rankless.engine.checkpoint import Copies, Snapshot
from rankless.engine.data_sums import DataSums
from rankless.engine.divergence import DivergedError
from rankless.engine.mirrors import Mirrors, alone
from rankless.engine.retention import Retention
from rankless.engine.schedule import StepSchedule
from rankless.engine.sinks.journal_sink import JournalSink
from rankless.engine.sinks.sink import Sinks
from rankless.engine.state import TrainingState
from rankless.errors import UserError, remedy, shell_word
from rankless.files.writing import keep_beside, write_atomically
from rankless.hardware.shortages import shortage
from rankless.recipe.load import dump, is_cut, load, to_json
from rankless.runs import chain, journal
from rankless.runs.directory import RunDirectory
from rankless.runs.saving import saving
from rankless.runs.scoring import is_better
from rankless.structures import Scores
from rankless.world.process_group import is_lost_peer

_PATIENCE = 2.0  # maximum seconds for which the last checkpoint waits for the list of the data's files


def is_usable(score: object) -> TypeGuard[float]:
    """Return whether a score can select the best weights."""
    return isinstance(score, float) and math.isfinite(score)


@dataclass(frozen=True)
class Outcome:
    """The outcome of writing one copy of a checkpoint.

    Attributes:
        problem: why the checkpoint could not be written, or None if it was written.
        lines: why the newest lines of the journal could not be written, or None if they were written.
        removed: the steps of checkpoints that were removed early to make room.
        has_best: whether this copy contains the weights of the best score. True if there is no best score.
        saved_best: the best score whose weights are in this copy.
        entry: the checkpoint's hash-chain line, or None if the checkpoint was not written or has none.
    """

    problem: str | None
    advice: str
    lines: str | None
    removed: list[int]
    has_best: bool
    saved_best: dict[str, Any] | None
    entry: dict[str, Any] | None = None


@dataclass(frozen=True)
class Origin:
    """The inputs of a run's checkpoints other than the recipe, as recorded in the hash chain.

    ``environment`` is the digest of this start's facts on rank 0 (:func:`rankless.runs.starts.facts`), and
    ``files`` is the list of the data files, or None on other ranks.
    """

    environment: str
    files: DataSums | None


class Saver:
    """Writes checkpoints and keeps track of the best one.

    Without ``mirrors``, only rank 0 writes a copy. Without an ``origin``, there is no hash chain.

    Attributes:
        is_best: whether the newest scores are the best so far and their weights are not saved yet.
        slowest: duration of this rank's slowest save in seconds, or 0 before the first one.
    """

    def __init__(
        self,
        run: RunDirectory,
        state: TrainingState,
        sinks: Sinks,
        start: int,
        mirrors: Mirrors | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.origin, self._before = origin, None
        self.run, self.state, self.sinks = run, state, sinks
        self.recipe, self.world = state.recipe, state.world
        self.mirrors = mirrors or alone(self.world)
        self.failing: set[int] = set()
        self.retention = Retention(self.mirrors.recipe(self.recipe), run, state)
        self.saved, self.saved_at = start, time.monotonic()
        self.is_best, self.slowest = False, 0.0
        self._copies = Copies()
        self._thread = ThreadPoolExecutor(1, "saver")
        self._begun: tuple[int, Future[Outcome] | None] | None = None

    def start(self) -> None:
        """Write ``recipe.yaml`` if necessary, and point ``best`` to the state's best step.

        All ranks must call this after all checks and before the first step.
        """
        mine = self.mirrors.is_writer
        problem = self._write_recipe()
        has_best = self.world.all_gather(mine and self.retention.has_best(self.state.best))
        if (best := self.state.best) is not None and not any(has_best):
            text = (
                f"the checkpoint of the best score so far ({best['score']:.4g} after step {best['step']}) is "
                "missing; the next evaluation counts as the best"
            )
            self.sinks.event("warning", self.saved, text)
            self.state.best = None
        unpointed = self.retention.start() if mine else None
        self.mirrors.send_journal()  # so that all copies have the line of this start
        if self.saved and self.origin and self.world.is_first:  # the line is missing after a sudden end
            self._record(chain.entry_of(self.run.step_directory(self.saved)))
        for text in self.mirrors.gather_messages([text for text in (problem, unpointed) if text]):
            self.sinks.event("warning", self.saved, text)

    def _write_recipe(self) -> str | None:
        """Write ``recipe.yaml``. If this fails and there are several copies, return an error message."""
        wanted = bool(self.world.broadcast(bool(self.saved or self.run.recipe.exists())))
        if not wanted or not self.mirrors.is_writer:
            return None
        try:
            with self.run.writing(self.run.recipe):
                try:
                    load(self.run.recipe)
                    is_whole = not is_cut(self.run.recipe)
                except UserError:  # the user may have edited it
                    is_whole = False
                if not is_whole and os.path.lexists(self.run.recipe):
                    keep_beside(self.run.recipe)
                write_atomically(self.run.recipe, dump(self.recipe))
        except UserError as error:
            if not self.mirrors.several:
                raise
            return "; ".join(error.problems)
        return None

    def is_due(self, step: int) -> bool:
        """Check whether a checkpoint is due after ``step`` steps or, for an interval in minutes, now."""
        every = self.recipe.checkpoint.every
        if isinstance(every, str) and every.endswith("min"):
            return time.monotonic() - self.saved_at >= 60 * float(every.removesuffix("min"))
        return StepSchedule(self.recipe, self.state.images).length.ends(step, every)

    def rank(self, step: int, scores: Scores, name: str) -> bool:
        """Record the score ``name`` after ``step`` steps, and return whether it is the best one so far."""
        score, best = scores.get(name), self.state.best
        if not is_usable(score):
            return self.is_best
        if is_better(name, score, best["score"] if best else None):
            self.state.best, self.is_best = {"step": step, "score": score}, True
        return self.is_best

    def save(self, step: int, *, required: bool) -> None:
        """Write a checkpoint. Training continues in the meantime unless the checkpoint is ``required``."""
        self.settle()
        self.is_best = False
        self.mirrors.send_journal()
        links = self._links(seconds=_PATIENCE if required else 0.0)
        self._begun = step, self._begin(step, links, wait=required) if self.mirrors.is_writer else None
        self.saved, self.saved_at = step, time.monotonic()
        if required:
            self.settle(required=True)

    def _links(self, *, seconds: float) -> dict[str, Any]:
        """Return the hash-chain entries for the next checkpoint, the same on all ranks.

        Wait at most ``seconds`` for the list of the data files.
        """
        mine: dict[str, Any] = {}
        if self.origin and isinstance(self.mirrors.journal, JournalSink):
            mine = {
                "before": self._before,
                "recipe": chain.digest_of(json.loads(to_json(self.retention.recipe))),
                "data": self.state.data,
                "images": self.origin.files.digest(seconds) if self.origin.files else None,
                "environment": self.origin.environment,
                "numbers": self.mirrors.journal.numbers.mark(),
            }
        return self.world.broadcast(mine) if self.mirrors.several else mine

    def _record(self, entry: dict[str, Any] | None) -> None:
        """Write a checkpoint's hash-chain line to rank 0's journal."""
        if entry and isinstance(self.mirrors.journal, JournalSink):
            with self.sinks.lock:
                self.mirrors.journal.checkpoint(entry)
            self._before = entry["link"]

    def _begin(self, step: int, links: Mapping[str, Any], *, wait: bool) -> Future[Outcome]:
        """Start writing this rank's copy of a checkpoint. With ``wait``, return once it is complete."""
        lines = self.mirrors.journal.problem if self.mirrors.journal else None
        with ExitStack() as stack:
            stack.enter_context(saving(self.run))  # before any slow operation
            snapshot = self.state.snapshot(step)
            try:
                snapshot = snapshot if wait else self._copies.copy(snapshot)
            except RuntimeError as error:
                if not shortage(error):
                    raise
                wait = True  # without a copy, write before the state changes
            snapshot = replace(snapshot, links=links)
            write = partial(self._write, snapshot, lines, stack.pop_all())
        if not wait:
            return self._thread.submit(write)
        done: Future[Outcome] = Future()
        done.set_result(write())
        return done

    def _write(self, snapshot: Snapshot, lines: str | None, mark: ExitStack) -> Outcome:
        problem, advice = None, ""
        began = time.monotonic()
        try:
            with mark:
                journal.flush(self.run.journal)
                self.retention.save(snapshot)
        except OSError as error:
            problem, advice = str(error), remedy(error)
        self.slowest = max(self.slowest, time.monotonic() - began)
        best = snapshot.state["best"]
        has_best = best is None or self.retention.has_best(best)
        entry = None if problem else chain.entry_of(self.run.step_directory(snapshot.step))
        saved_best = self.retention.saved_best
        return Outcome(problem, advice, lines, self.retention.removed, has_best, saved_best, entry)

    def settle(self, *, required: bool = False) -> None:
        """Wait for the save in progress, if any, and report its outcome. All ranks must call this."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        step, writing = begun
        mine = writing.result() if writing else None
        if self.mirrors.several:
            gathered = self.world.all_gather(mine)
            outcomes = {rank: gathered[rank] for rank in self.mirrors.writers}
        else:
            outcomes = {0: mine} if mine else {}
        if outcomes and not any(one.has_best for one in outcomes.values()):
            self.state.best = outcomes[0].saved_best
        self._record(next((one.entry for one in outcomes.values() if one.entry), None))
        self._report(step, outcomes, required=required)

    def poll(self) -> None:
        """Report the outcome of a finished save if this needs no exchange between ranks."""
        if self._begun and self._begun[1] and self._begun[1].done() and not self.mirrors.several:
            self.settle()

    def close(self) -> None:
        """Wait for a save in progress, even if other ranks have failed."""
        begun, self._begun = self._begun, None
        self._thread.shutdown()
        if begun and begun[1] and (problem := begun[1].result().problem):
            with suppress(UserError):  # the journal cannot be written if its disk is full, too
                self.sinks.event("not saved", begun[0], _failed(begun[0], problem))

    def finish(self) -> None:
        """Send the remaining lines of the journal to the copies. All ranks must call this."""
        self.mirrors.send_journal()
        with suppress(OSError):  # this copy then lacks the list
            self.mirrors.send_file(self.run.data_sums, 0)

    def save_before_the_end(self, step: int) -> None:
        """Save the state before all ranks exit with an error, and return once all copies are written.

        The launcher ends the remaining ranks as soon as one of them exits.
        """
        self.save(step, required=True)
        try:
            self.world.barrier()
        except Exception as error:  # rank 0 could not save and has reported it
            if not is_lost_peer(error):
                raise

    @contextmanager
    def saving_on_error(self, step: int) -> Iterator[None]:
        """Save the state after ``step`` steps if an evaluation in this block raises a ``UserError``."""
        try:
            yield
        except UserError:
            self.state.unscored = True
            self.save_before_the_end(step)
            raise

    @contextmanager
    def saving_on_divergence(self, step: int) -> Iterator[None]:
        """Save the state after ``step`` steps if training diverges in this block and the state is intact."""
        try:
            yield
        except DivergedError as error:
            self.settle()
            if error.is_whole and step > self.saved:
                self.save(step, required=True)  # the other ranks wait in the broadcast until it is written
            # Paths may differ between ranks, but messages are printed only once if they are equal.
            advice = self.world.broadcast(self._advice(repeats=error.repeats) if self.world.is_first else [])
            raise UserError([*error.problems, *advice]) from error

    def _advice(self, *, repeats: bool) -> list[str]:
        if not (last := self.run.pointed("last")):
            return []
        if not repeats:
            return [f"the checkpoint of step {last} is complete; continue from it with: {self.run.again}"]
        weights = self.run.step_directory(last) / "model.safetensors"
        return [
            f"the checkpoint of step {last} is complete, but --resume would fail in the same way, because it "
            "keeps the recipe; start a new run from the checkpoint's weights with another recipe: "
            f"model.pretrained={shell_word(weights)}"
        ]

    def _report(self, step: int, outcomes: Mapping[int, Outcome], *, required: bool) -> None:
        """Report failed writes. Repeated failures of a copy are reported only once."""
        for rank, one in outcomes.items():
            if one.removed:
                steps = ", ".join(map(str, one.removed))
                text = f"removed older checkpoints (step {steps}) to make room"
                self.sinks.event("full disk", step, self.mirrors.label(rank, text))
        failed = {rank: _failed(step, one.problem) for rank, one in outcomes.items() if one.problem}
        if required and failed and len(failed) == len(outcomes):
            raise UserError(
                self.mirrors.label(
                    rank,
                    f"{text}; {outcomes[rank].advice} and continue from the newest one: {self.run.again}",
                )
                for rank, text in failed.items()
            )
        news = {rank: f"{text}; training continues" for rank, text in failed.items()}
        if self.mirrors.several:
            lines = {rank: one.lines for rank, one in outcomes.items() if one.lines and rank not in failed}
            news |= {rank: f"the journal could not be written ({text})" for rank, text in lines.items()}
            news, self.failing = {r: text for r, text in news.items() if r not in self.failing}, set(news)
        for rank, text in news.items():
            self.sinks.event("not saved", step, self.mirrors.label(rank, text))


def _failed(step: int, problem: str) -> str:
    return f"the checkpoint of step {step} could not be written ({problem})"
