"""New folders where the user names none: NAME, NAME-2, NAME-3 …, each for one call alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rankless.errors import UserError


def numbered_folder(wanted: Path, option: str) -> Path:
    """Make ``wanted``, or ``wanted-2``, ``-3`` … where that is taken, by another process at once even."""
    number, path = 1, wanted
    while True:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
            path = wanted.with_name(f"{wanted.name}-{number}")
        except OSError as error:
            raise UserError(
                f"{path}: cannot be made ({error}); give another directory with {option}"
            ) from error
        else:
            return path


@contextmanager
def given_or_numbered(given: Path | None, wanted: Path, option: str) -> Iterator[Path]:
    """Yield ``given``, or a :func:`numbered_folder`; where a start inside fails, :func:`removed_on_error`."""
    with removed_on_error(given or wanted):  # for the folder above it, too
        folder = given or numbered_folder(wanted, option)
        with removed_on_error(folder):
            yield folder


@contextmanager
def removed_on_error(path: Path) -> Iterator[None]:
    """Leave no empty directory behind where a start fails, so that the next try may have its name.

    Args:
        path: of the directory; those above it that are not there yet do not stay, either.
    """
    new = [folder for folder in path.parents if not os.path.lexists(folder)]
    try:
        yield
    except BaseException:
        for folder in (path, *new):
            with suppress(OSError):  # not made, or something lies there
                folder.rmdir()
        raise
