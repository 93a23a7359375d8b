"""A save in progress, announced in the run directory, so that no launcher ends the process that writes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rankless.run_directory import RunDirectory

_NAME = ".saving"


@contextmanager
def announced(run: RunDirectory) -> Iterator[None]:
    """Inside, this process saves into ``run``.

    A disk that does not even take the announcement is left to the save itself to report.
    """
    path = run.path / _NAME
    with suppress(OSError):
        path.write_text(str(os.getpid()), encoding="ascii")
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def saving_process(run: RunDirectory) -> int | None:
    """The id of the process that saves into ``run``, None without one; a killed one may still be named."""
    try:
        return int((run.path / _NAME).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
