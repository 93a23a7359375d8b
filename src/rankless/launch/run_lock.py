"""Lock a run directory for one training at a time, and leave it clean."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from rankless.errors import UserError, listed
from rankless.files.outputs import unusable
from rankless.files.reading import MIB, POINTER, read_text, reason
from rankless.files.writing import remove_tree, sweep
from rankless.printing import warn
from rankless.runs import journal
from rankless.runs.directory import RunDirectory, damage, dangling, recover
from rankless.runs.overview import DETACHED

_MARK = "rankless run\n"
"""In the lock of a run directory; it shows that the other files there are a run's."""
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK)


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Inside, what the system refuses is an error that names the run directory."""
    try:
        yield
    except OSError as error:
        why = unusable(path) or reason(error)
        raise UserError(f"{path}: cannot be used as a run directory ({why}); give another --run") from error


@contextmanager
def locked(run: RunDirectory, resume: bool) -> Iterator[IO[str]]:
    """Lock the run directory; the lock of a dead process is gone with it."""
    if resume:
        refuse_nothing(run)
    _refuse_a_strangers(run)
    with _usable(run.path):
        run.path.mkdir(parents=True, exist_ok=True)
        file = _lock(run)
    with file:
        _take(file, run.path)
        if os.fstat(file.fileno()).st_size == 0:
            with _usable(run.path):
                # Past the buffer, which would be written once more when the file is closed.
                os.write(file.fileno(), _MARK.encode("ascii"))
        _refuse_another(run, resume)  # not before: another process that trains here is what matters
        _sweep(run)
        _refuse_another(run, resume)  # a checkpoint may have been put back
        if not resume and run.journal.exists():
            run.journal.unlink()  # of a start that died before its first checkpoint
        try:
            yield file
        except UserError:
            if not resume and not _has_trained(run):
                _vacate(run)
            raise


def refuse_nothing(run: RunDirectory) -> None:
    """Raise where no run was started; a checkpoint has the recipe, too.

    Raises:
        UserError: there is neither.
    """
    if not run.recipe.exists() and not run.steps():
        raise UserError(
            f"{run.path}: nothing to resume, there is no recipe.yaml and no checkpoint; give the directory "
            "of a run that was started, or leave --resume out"
        )


def _refuse_a_strangers(run: RunDirectory) -> None:
    """Raise where files of somebody else's lie, so that a run never mixes with them."""
    there = list[str]()
    with suppress(OSError):  # new, or no folder
        there = sorted(path.name for path in run.path.iterdir() if not _is_of_this_start(path))
    if there and not _is_run(run):
        raise UserError(
            f"{run.path}: not a run directory, but it has {listed(there)}; expected a run, or a new or an "
            "empty folder; give another --run"
        )


def _is_of_this_start(path: Path) -> bool:
    """Whether a detached start left it, or a shell or Slurm (``-o runs/a/%j.out``), before the training."""
    return path.name == DETACHED or path.stem == "coordinator" or path.suffix in {".out", ".err", ".log"}


def _is_run(run: RunDirectory) -> bool:
    """Whether its lock shows it, or what a run recorded: an earlier version left its lock empty."""
    mark = recorded = ""
    with suppress(OSError):
        mark = read_text(run.path / ".lock", POINTER, errors="replace")
    with suppress(OSError):
        recorded = read_text(run.environment, 64 * MIB, errors="replace")
    return mark == _MARK or ('"versions"' in recorded and '"rankless"' in recorded)


def _lock(run: RunDirectory) -> IO[str]:
    """The file to lock; nothing of it is lost, and no link is followed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(run.path / ".lock", flags, 0o666), "r+", encoding="ascii")


def _take(file: IO[str], path: Path) -> None:
    """Take the lock, or warn that this file system has none: clusters mount Lustre and NFS like that.

    Raises:
        UserError: another process has it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(
            f"{path}: another process trains in this directory now; wait for it, or give another --run"
        ) from error
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise UserError(f"{path}: cannot be locked ({error}); give another --run") from error
        warn(
            f"{path}: its file system cannot lock files ({error.strerror}), so a second training in this "
            "directory would not be noticed: do not start one"
        )


def _refuse_another(run: RunDirectory, resume: bool) -> None:
    if not resume and (steps := run.steps()):
        raise UserError(
            f"{run.path}: a run is there already (last step {steps[-1]}); go on with --resume "
            "(resume=True in Python), or name another run"
        )


def _has_trained(run: RunDirectory) -> bool:
    """Whether a step was done, or anything saved."""
    if run.checkpoints.exists():
        return True
    try:
        return any(journal.step_of(entry) for entry in journal.read(run.journal))
    except FileNotFoundError:
        return False
    except OSError:  # nobody knows
        return True


def _vacate(run: RunDirectory) -> None:
    """Remove a run that an error prevented from starting, so that the next one may have its name."""
    for path in (run.recipe, run.environment, run.journal, run.report, run.evaluation, run.path / ".lock"):
        path.unlink(missing_ok=True)
    remove_tree(run.logs)
    with suppress(OSError):  # something else lies there
        run.path.rmdir()


def _sweep(run: RunDirectory) -> None:
    """Remove what died half-written, and put back checkpoints that are whole; nobody else is here."""
    sweep(run.path)
    sweep(run.checkpoints)
    recover(run)
    _put_last_right(run)


def _put_last_right(run: RunDirectory) -> None:
    """Make ``last`` name the newest whole checkpoint, from which a run goes on; a kill came before it did."""
    steps, named = run.steps(), run.pointed("last")
    if named in steps[-1:]:  # whether it is whole is seen when it is read
        return
    whole = (step for step in reversed(steps) if damage(run.step_directory(step)) is None)
    if (newest := next(whole, named)) is None or newest == named:
        return
    if problem := dangling(run, "last"):
        warn(f"{problem}; going on with the newest whole one ({run.step_directory(newest).name})")
    with suppress(OSError):  # the next save does it
        run.point("last", newest)
