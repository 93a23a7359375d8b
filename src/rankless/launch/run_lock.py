"""Lock a run directory so that only one training run uses it, and remove what killed runs left behind."""

from __future__ import annotations

import errno
import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rankless.errors import UserError, listed
from rankless.files.outputs import unusable
from rankless.files.reading import MIB, POINTER, read_text, reason
from rankless.files.writing import has_name, remove_tree, sweep
from rankless.printing import warn
from rankless.runs import journal
from rankless.runs.directory import DETACHED, RunDirectory, damage, dangling, recover, similar_run

_MARK = "rankless run\n"  # start of the lock file of a run
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK)


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = unusable(path) or reason(error)
        raise UserError(f"{path}: cannot be used as a run directory ({why}); use another --run") from error


@contextmanager
def locked(run: RunDirectory, resume: bool, token: str = "") -> Iterator[bool]:
    """Lock a run directory, and yield whether this is the first process of its training run to do so.

    If ``resume``, the directory may contain a run. Hosts of one training run pass the same ``token``, so that
    hosts that share the directory also share its lock. The system releases the lock when a process dies.
    Raise a UserError if another run has the lock or the directory cannot be used.
    """
    if resume:
        refuse_no_run(run)
    _refuse_other_files(run)
    with _locked_file(run, fcntl.LOCK_SH if token else fcntl.LOCK_EX) as file:
        mark = (_MARK + token).encode("ascii")
        is_marked = os.pread(file.fileno(), len(mark) + 1, 0) == mark
        if token and is_marked:
            yield False
            return
        if token:
            _take(file, run.path, fcntl.LOCK_EX)
        _refuse_existing_run(run, resume)  # only after locking, which reports a run in progress
        sweep(run.path)
        sweep(run.checkpoints)
        recover(run)
        _repair_last(run)
        _refuse_existing_run(run, resume)  # a checkpoint may have been restored
        if not resume and run.journal.exists():
            run.journal.unlink()  # left by a start that died before its first checkpoint
        if not is_marked:  # do not write again, because the disk may be full
            with _usable(run.path):
                os.ftruncate(file.fileno(), os.pwrite(file.fileno(), mark, 0))
        if token:
            _take(file, run.path, fcntl.LOCK_SH)
        try:
            yield True
        except UserError:
            if not resume and not _has_trained(run):
                _vacate(run)
            raise


def refuse_no_run(run: RunDirectory) -> None:
    """Raise a UserError if the directory has neither a recipe nor a checkpoint."""
    if not run.recipe.exists() and not run.steps():
        raise UserError(
            f"{run.path}: nothing to resume (no recipe.yaml and no checkpoint); use the directory of an "
            f"existing run, or remove --resume{similar_run(run.path)}"
        )


def refuse_used(run: RunDirectory) -> None:
    """Raise a UserError if the directory already contains a run or other files."""
    _refuse_other_files(run)
    _refuse_existing_run(run, resume=False)


def _refuse_other_files(run: RunDirectory) -> None:
    there = list[str]()
    with suppress(OSError):  # the directory is new, or not a folder
        # Files that may come from a detached start, a shell, or Slurm (``-o runs/a/%j.out``) do not count.
        there = sorted(
            path.name
            for path in run.path.iterdir()
            if path.name != DETACHED
            and path.stem != "coordinator"
            and path.suffix not in {".out", ".err", ".log"}
        )
    if there and not _is_run(run):
        raise UserError(
            f"{run.path}: is not a run directory and contains {listed(there)}; expected a run, or a new or "
            "empty folder; use another --run"
        )


def _is_run(run: RunDirectory) -> bool:
    mark = recorded = ""  # earlier versions left the lock file empty
    with suppress(OSError):
        mark = read_text(run.path / ".lock", POINTER, errors="replace")
    with suppress(OSError):
        recorded = read_text(run.environment, 64 * MIB, errors="replace")
    return mark.startswith(_MARK) or ('"versions"' in recorded and '"rankless"' in recorded)


def _locked_file(run: RunDirectory, how: int) -> io.FileIO:
    path, flags = run.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        with _usable(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
            try:
                file = io.FileIO(os.open(path, flags, 0o666), "r+")
            except FileNotFoundError:  # the directory was removed again
                continue
        try:
            _take(file, run.path, how)
            if has_name(file.fileno(), path):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # a failed start removed the file before it was locked


def _take(file: io.FileIO, path: Path, how: int) -> None:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(
            f"{path}: another process is training in this directory; wait until it ends, or use another --run"
        ) from error
    except OSError as error:
        if error.errno not in _UNSUPPORTED:  # some Lustre and NFS mounts do not support locks
            raise UserError(f"{path}: cannot be locked ({error}); use another --run") from error
        if how == fcntl.LOCK_EX:  # warn once
            warn(
                f"{path}: the file system cannot lock files ({error.strerror}), so a second training run in "
                "this directory would not be detected; do not start one"
            )


def _refuse_existing_run(run: RunDirectory, resume: bool) -> None:
    if not resume and (steps := run.steps()):
        raise UserError(
            f"{run.path}: already contains a run (last step {steps[-1]}); continue it with --resume "
            "(resume=True in Python), or use another --run"
        )


def _has_trained(run: RunDirectory) -> bool:
    if run.checkpoints.exists():
        return True
    try:
        return any(journal.step_of(entry) for entry in journal.read(run.journal))
    except FileNotFoundError:
        return False
    except OSError:  # assume that the run has trained
        return True


def _vacate(run: RunDirectory) -> None:
    files = (run.recipe, run.environment, run.data_sums, run.journal, run.report, run.evaluation)
    for path in (*files, run.path / ".lock"):
        path.unlink(missing_ok=True)
    remove_tree(run.logs)
    with suppress(OSError):  # the folder has other files
        run.path.rmdir()


def _repair_last(run: RunDirectory) -> None:
    """Point ``last`` to the newest complete checkpoint, because a killed process may not have done so."""
    steps, named = run.steps(), run.pointed("last")
    if named in steps[-1:]:  # whoever reads the checkpoint verifies that it is complete
        return
    whole = (step for step in reversed(steps) if damage(run.step_directory(step)) is None)
    if (newest := next(whole, named)) is None or newest == named:
        return
    if problem := dangling(run, "last"):
        warn(f"{problem}; using the newest complete checkpoint ({run.step_directory(newest).name})")
    with suppress(OSError):  # the next save updates the link
        run.point("last", newest)
