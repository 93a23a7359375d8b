"""New folders NAME, NAME-2, NAME-3 … for commands that are not given a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rankless.errors import UserError


def numbered_folder(wanted: Path, option: str) -> Path:
    """Create and return the first of ``wanted``, ``wanted-2``, ``wanted-3`` … that does not exist."""
    number, path = 1, wanted
    while True:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
            path = wanted.with_name(f"{wanted.name}-{number}")
        except OSError as error:
            raise UserError(
                f"{path}: cannot be created ({error}); choose another directory with {option}"
            ) from error
        else:
            return path


@contextmanager
def given_or_numbered(given: Path | None, wanted: Path, option: str) -> Iterator[Path]:
    """Yield ``given`` or a :func:`numbered_folder`, and apply :func:`removed_on_error` to it."""
    with removed_on_error(given or wanted):  # also removes new parent folders
        folder = given or numbered_folder(wanted, option)
        with removed_on_error(folder):
            yield folder


@contextmanager
def removed_on_error(path: Path) -> Iterator[None]:
    """On an error, remove ``path`` and its new parents if they are empty."""
    new = [folder for folder in path.parents if not os.path.lexists(folder)]
    try:
        yield
    except BaseException:
        for folder in (path, *new):
            with suppress(OSError):  # it was not created, or is not empty
                folder.rmdir()
        raise
