"""Checks of the disk of the run directory."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from rankless.errors import in_gb
from rankless.files.writing import flush
from rankless.launch.doctor.check import Check, error, ok, warning
from rankless.launch.doctor.machine import GB


def space(run: Path, free: int | None = None) -> Check:
    """Room for checkpoints.

    Args:
        run: the run directory, which need not be there yet.
        free: bytes; asked of the file system if not given.
    """
    folder = existing(run)
    free = shutil.disk_usage(folder).free if free is None else free
    value, fix = (
        f"{in_gb(free)} free in {folder}",
        f"make room (du -xsh {folder}/* | sort -h), or another --run",
    )
    if free < GB:
        return error("disk", value, fix)
    return warning("disk", value, fix) if free < 10 * GB else ok("disk", value)


def _flush(file: IO[bytes]) -> None:
    file.write(b"rankless doctor\n")
    os.fsync(file.fileno())


def _lock(file: IO[bytes]) -> None:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _rename(file: IO[bytes]) -> None:
    other = Path(f"{file.name}-renamed")
    Path(file.name).rename(other)
    try:
        flush(other.parent)
    finally:
        other.rename(file.name)


_STEPS: dict[str, Callable[[IO[bytes]], None]] = {"fsync": _flush, "flock": _lock, "rename": _rename}


def writing(run: Path, steps: dict[str, Callable[[IO[bytes]], None]] | None = None) -> Check:
    """Whether files can be written for good, locked and renamed there; leaves nothing behind.

    Args:
        run: the run directory; where it is not there, the folder that it would be made in.
        steps: what is done with a new file.
    """
    folder, failed = existing(run), []
    fix = f"let this user write to {folder}, or give a --run on a local disk, NFS 4 or Lustre with flock"
    try:
        file = tempfile.NamedTemporaryFile("wb", buffering=0, prefix=".rankless-doctor-", dir=folder)  # noqa: SIM115
    except OSError as problem:
        return error("run directory", f"{folder}: no file can be made ({problem.strerror})", fix)
    with file:
        for name, step in (_STEPS if steps is None else steps).items():
            try:
                step(file)
            except OSError as problem:
                failed.append(f"{name} ({problem.strerror})")
    if failed:
        return error("run directory", f"{folder}: cannot do {', '.join(failed)}", fix)
    return ok("run directory", f"{folder}: writes, locks and renames")


def existing(path: Path) -> Path:
    """The path itself, or the nearest folder above that is there."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
