"""Holding a run directory for one training at a time, and leaving it clean."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from rankless.errors import UserError
from rankless.run_directory import RunDirectory, recover


@contextmanager
def locked(run: RunDirectory, resume: bool) -> Iterator[IO[str]]:
    """Hold the run directory; the lock of a dead process is gone with it."""
    if resume and not run.recipe.exists():
        raise UserError(
            f"{run.path}: nothing to resume, there is no recipe.yaml; give the directory of a run that was "
            "started, or leave --resume out"
        )
    _refuse_another(run, resume)
    if not resume and run.recipe.exists() and not run.environment.exists():
        raise UserError(
            f"{run.path}: holds a recipe.yaml that is not of a run, and a run would replace it; "
            "give another --run"
        )
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        file = (run.path / ".lock").open("w")
    except OSError as error:
        raise UserError(
            f"{run.path}: cannot be used as a run directory ({error}); give another --run"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"{run.path}: another process trains in this directory now; "
                "wait for it, or give another --run"
            ) from error
        _sweep(run)
        _refuse_another(run, resume)  # a checkpoint may have been put back
        if not resume and run.journal.exists():
            run.journal.unlink()  # of a start that died before its first checkpoint
        try:
            yield file
        except UserError:
            if not resume and not run.journal.exists():
                _vacate(run)
            raise


def _refuse_another(run: RunDirectory, resume: bool) -> None:
    if not resume and (steps := run.steps()):
        raise UserError(
            f"{run.path}: a run is there already (last step {steps[-1]}); go on with --resume, "
            "or give another --run"
        )


def _vacate(run: RunDirectory) -> None:
    """Leave nothing of a run that a fault kept from beginning, so that the next try may have its name."""
    for place in (run.recipe, run.environment, run.path / ".lock"):
        place.unlink(missing_ok=True)
    shutil.rmtree(run.logs, ignore_errors=True)
    with suppress(OSError):  # something else lies there
        run.path.rmdir()


def _sweep(run: RunDirectory) -> None:
    """Remove what died half-written, and put back checkpoints that are whole; nobody else is here."""
    for left in (*run.path.glob(".*.tmp"), *run.checkpoints.glob(".*.tmp")):
        if not left.is_dir():
            left.unlink(missing_ok=True)
    recover(run)
