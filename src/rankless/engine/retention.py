"""Save checkpoints, and remove all but the newest ones and the best one."""

from __future__ import annotations

import errno
import math
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankless.engine import checkpoint
from rankless.engine.checkpoint import Snapshot
from rankless.engine.mirrors import Mirrors
from rankless.engine.state import TrainingState
from rankless.errors import UserError, in_gb
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory, damage, holds_weights, remove

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SMALL_FILES = 32 * 1024  # bytes of state.json, SHA256SUMS, headers and partly filled blocks
_NUMBERS = {1: "the next checkpoint", 2: "two checkpoints", 3: "three checkpoints"}


class Retention:
    """Saves the checkpoints of a run directory, and removes those that are no longer needed.

    ``saved_best`` is the best score whose weights are in this directory. ``removed`` contains the steps of
    the checkpoints that the last save removed early to make room.
    """

    def __init__(self, recipe: Recipe, run: RunDirectory, state: TrainingState) -> None:
        self.recipe, self.run, self.state = recipe, run, state
        self.saved_best: dict[str, Any] | None = state.best
        self.removed: list[int] = []

    def has_best(self, best: Mapping[str, Any] | None) -> bool:
        """Check whether this directory contains the weights of the score ``best``."""
        if best is None or not math.isfinite(best["score"]):
            return False
        return holds_weights(self.run.step_directory(int(best["step"])))

    def start(self) -> str | None:
        """Point ``best`` to the state's best step, and return an error message if this fails.

        The links to the weights are also updated, because an earlier process may have been killed before
        updating them.
        """
        self.saved_best = self.state.best if self.has_best(self.state.best) else None
        try:
            self._point()
        except OSError as error:  # the next save tries again
            return f"{self.run.checkpoints / 'best'} cannot be written ({error})"
        finally:
            for name in ("best", "last"):
                self.run.link(name)
        return None

    def save(self, snapshot: Snapshot) -> None:
        """Save a state. If the disk is full, remove older checkpoints to make room."""
        self.removed = []
        try:
            self._write(snapshot)
        except OSError as error:
            if error.errno in _FULL:
                self.removed = self._make_room()
            if not self.removed:
                raise
            self._write(snapshot)

    def _write(self, snapshot: Snapshot) -> None:
        checkpoint.save(self.run, snapshot, self.recipe, self.state.task.class_names)
        best = snapshot.state["best"]
        if self.has_best(best):  # only another machine may have it, if this machine's disk was full
            self.saved_best = best
        self._point()
        checkpoint.remove_old(self.run, self.recipe.checkpoint.keep, self._best_step())

    def _point(self) -> None:
        step = self._best_step()
        if step is None:
            (self.run.checkpoints / "best").unlink(missing_ok=True)
            self.run.link("best")
        elif self.run.pointed("best") != step:
            self.run.point("best", step)

    def _make_room(self) -> list[int]:
        """Remove all checkpoints except the best and the newest, and return the removed steps.

        Nothing is removed if the newest checkpoint is damaged.
        """
        wanted = (self._best_step(), self.run.pointed("best"))
        steps = self.run.steps()
        spare = [step for step in steps[:-1] if step not in wanted]
        if not spare or damage(self.run.step_directory(steps[-1])) is not None:
            return []
        for step in spare:
            remove(self.run.step_directory(step))
        return spare

    def _best_step(self) -> int | None:
        return None if self.saved_best is None else int(self.saved_best["step"])


def check_disk_space(run: RunDirectory, state: TrainingState, mirrors: Mirrors, start: int) -> list[str]:
    """Check before the first step that the checkpoints fit on the disk. All ranks must call this.

    There must be room for the newest checkpoint and the next one, and for the best one if the run has
    evaluations before its end. Quotas are not checked. Returns warnings if there is no room for all
    checkpoints that the recipe keeps, or if only some machines have room for the required ones.
    """
    error: str | None = None
    warning: str | None = None
    if mirrors.is_writer:
        recipe, size, free = state.recipe, _size(state), _free(run.path)
        there = len(run.steps()) if start else 0
        least = 3 if recipe.evaluate.every else 2
        most = recipe.checkpoint.keep + least - 1
        needed = max(least - there, 1)
        if free < needed * size:
            error = (
                f"{run.path}: only {in_gb(free)} are free on this file system; expected at least "
                f"{in_gb(needed * size)} for {_NUMBERS[needed]} of this model; free up space, or use --run "
                "with a folder on another file system"
            )
        elif free < (most - there) * size:
            warning = (
                f"only {in_gb(free)} are free for checkpoints of {in_gb(size)} each; if the disk fills up, "
                "fewer checkpoints than checkpoint.keep are kept"
            )
    found = mirrors.world.all_gather([error, warning])
    errors = [mirrors.label(rank, found[rank][0]) for rank in mirrors.writers if found[rank][0]]
    if len(errors) == len(mirrors.writers):
        raise UserError(errors)
    return errors + [mirrors.label(rank, found[rank][1]) for rank in mirrors.writers if found[rank][1]]


def _size(state: TrainingState) -> int:
    """Return the maximum size of a checkpoint in bytes, with the optimizer's state for every parameter."""
    weights = sum(value.numel() * value.element_size() for value in state.model.state_dict().values())
    trained = sum(value.numel() * value.element_size() for value in state.model.parameters())
    optim = state.recipe.optim
    slots = int(optim.momentum > 0) if optim.name == "sgd" else 2
    return int(weights * (2 if state.ema else 1) + trained * slots) + _SMALL_FILES


def _free(path: Path) -> int:
    for folder in (path, *path.absolute().parents):
        with suppress(FileNotFoundError):
            return shutil.disk_usage(folder).free
    return 0
