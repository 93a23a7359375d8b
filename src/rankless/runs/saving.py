"""A file in the run directory that marks a save in progress, so that launchers wait for the save."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rankless.files.reading import POINTER, read_text
from rankless.runs.directory import RunDirectory

_NAME = ".saving"


@contextmanager
def saving(run: RunDirectory) -> Iterator[None]:
    """Mark ``run`` as being saved by this process inside a ``with`` block.

    Errors in writing the mark are ignored, because the save itself reports them.
    """
    path = run.path / _NAME
    with suppress(OSError):
        path.unlink(missing_ok=True)  # left by a killed process, or a link that must not be followed
        with path.open("x", encoding="ascii") as file:
            file.write(f"{os.getpid()} {os.uname().nodename}")
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def saving_process(run: RunDirectory) -> int | None:
    """Return the id of the process on this machine that is saving ``run``, or None if there is none.

    The process may have been killed. Processes on other machines are ignored.
    """
    try:
        process, _, machine = read_text(run.path / _NAME, POINTER, errors="replace").partition(" ")
        return int(process) if machine == os.uname().nodename else None
    except (OSError, ValueError):
        return None
