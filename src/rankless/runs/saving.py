"""A save in progress, announced in the run directory, so that no launcher ends the process that writes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rankless.files.reading import POINTER, read_text
from rankless.runs.directory import RunDirectory

_NAME = ".saving"


@contextmanager
def announced(run: RunDirectory) -> Iterator[None]:
    """Inside, this process saves into ``run``.

    A disk that does not even take the announcement is left to the save itself to report.
    """
    path = run.path / _NAME
    with suppress(OSError):
        path.unlink(missing_ok=True)  # a killed process's, or what must not be written through
        with path.open("x", encoding="ascii") as file:
            file.write(f"{os.getpid()} {os.uname().nodename}")
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def saving_process(run: RunDirectory) -> int | None:
    """The id of the process of this machine that saves into ``run``, None without one.

    A killed one may still be named. On a directory that machines share, another one's number means nothing.
    """
    try:
        process, _, machine = read_text(run.path / _NAME, POINTER, errors="replace").partition(" ")
        return int(process) if machine == os.uname().nodename else None
    except (OSError, ValueError):
        return None
