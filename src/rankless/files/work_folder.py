"""A new folder that is there as a whole or not at all: it is built under a hidden name and renamed."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rankless.errors import UserError
from rankless.files.cache_folder import hold, remove_unheld


class _Holder:
    """As long as it lives, the folder is held."""


@contextmanager
def new_folder(out: Path, option: str = "--out") -> Iterator[Path]:
    """An empty folder to write a data set into; it becomes ``out`` at the end, and is removed on an error.

    It stands beside ``out``. Only where an empty ``out`` cannot be renamed over, because it is a mount or its
    parent cannot be written to, it stands inside, and what is in it moves up at the end.

    Raises:
        UserError: something is there already, or came meanwhile; or it cannot be written.
    """
    refuse_existing(out, option)
    place = Path(os.path.realpath(out))  # a link to an empty folder goes on leading there
    inside = place.is_dir() and (place.is_mount() or not os.access(place.parent, os.W_OK | os.X_OK))
    made: Path | None = None
    try:
        with work_folder(place, inside=inside) as made:
            yield made
            if inside:
                _move_up(made, place)
            else:
                made.rename(place)  # fails where there is more than an empty folder by now
    except OSError as error:
        reason = error.strerror or error
        if made is not None and (source := _read_from(error, made)):
            message = f"{source}: cannot be copied to {option} {out}: {reason}; nothing was written"
        else:
            message = (
                f"{option} {out}: it cannot be written: {reason}{_free(place)}. "
                "Nothing was kept: make room, or give another folder"
            )
        raise UserError(message) from error


def refuse_existing(out: Path, option: str = "--out") -> None:
    """Raise unless ``out`` can be a new folder: nothing is there, or an empty folder.

    Raises:
        UserError: something is there, or nobody can look.
    """
    try:
        if os.path.lexists(out):
            _sweep(out, out.name)
            if not out.is_dir() or any(out.iterdir()):
                raise UserError(
                    f"{option} {out}: it is there already, and nothing is replaced; give a new folder"
                )
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UserError(f"{option} {out}: cannot be a new folder: {reason}") from error


@contextmanager
def work_folder(out: Path, *, inside: bool = False) -> Iterator[Path]:
    """A new folder ``.NAME-…`` beside ``out`` or in it, which goes at the end unless it was renamed.

    Those of earlier processes that were killed are removed first; those of living ones stay.

    Raises:
        OSError: it cannot be made.
    """
    parent = out if inside else out.parent
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent, out.name)
    made = Path(tempfile.mkdtemp(prefix=_prefix(out.name), dir=parent))
    holder = _Holder()
    hold(made, holder)
    try:
        made.chmod(0o777 & ~_umask())
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        del holder


def _prefix(name: str) -> str:
    return f".{name[:50]}-"  # a file's name has at most 255 bytes


def _sweep(parent: Path, name: str) -> None:
    """Remove what killed processes left."""
    left = re.compile(rf"{re.escape(_prefix(name))}[a-z0-9_]{{8}}")  # as mkdtemp names them
    with suppress(NotADirectoryError):
        for folder in [each for each in parent.iterdir() if left.fullmatch(each.name) and each.is_dir()]:
            if not folder.is_symlink():
                remove_unheld(folder)


def _read_from(error: OSError, made: Path) -> Path | None:
    """The file outside of the new folder that an error is about."""
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return None
    named = Path(os.fsdecode(error.filename))
    return None if made in (named, *named.parents) else named


def _move_up(made: Path, place: Path) -> None:
    if others := [each for each in place.iterdir() if each != made]:
        raise FileExistsError(errno.EEXIST, f"{others[0].name} has come meanwhile")
    for entry in sorted(made.iterdir()):
        entry.rename(place / entry.name)


def _free(place: Path) -> str:
    """How much room there is, as a part of a sentence."""
    with suppress(OSError, StopIteration):
        free = shutil.disk_usage(next(each for each in place.parents if each.exists())).free
        return f" ({free / 1e9:.1f} GB are free there)"
    return ""


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
