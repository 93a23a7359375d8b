"""Create folders atomically: build them under a hidden name, then rename them."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rankless.errors import UserError, in_gb, remedy
from rankless.files.cache_folder import hold, remove_unheld


class _Holder:
    """An object that keeps a lock during its lifetime."""


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder for a data set; rename it to ``out`` at the end, or remove it on an error.

    The folder is created next to ``out``. If ``out`` is an empty folder that cannot be replaced, because it
    is a mount point or its parent is not writable, the new folder is created inside ``out``, and its contents
    are moved up at the end.
    """
    refuse_existing(out)
    target = Path(os.path.realpath(out))  # a link to an empty folder is preserved
    inside = target.is_dir() and (target.is_mount() or not os.access(target.parent, os.W_OK | os.X_OK))
    made: Path | None = None
    try:
        with work_folder(target, inside=inside) as made:
            yield made
            if not inside:
                made.rename(target)  # fails unless it is still an empty folder
            elif others := [each for each in target.iterdir() if each != made]:
                raise FileExistsError(errno.EEXIST, f"{others[0].name} was created in the meantime")
            else:
                for entry in sorted(made.iterdir()):
                    entry.rename(target / entry.name)
    except OSError as error:
        reason = error.strerror or error
        if made is not None and (source := _read_from(error, made)):
            message = f"{source}: cannot be copied to --out {out}: {reason}; nothing was written"
        else:
            advice = remedy(error)
            free = _free(target) if advice == "make room" else ""
            message = (
                f"--out {out}: cannot be written: {reason}{free}; "
                f"nothing was written; {advice}, or use another folder"
            )
        raise UserError(message) from error


def refuse_existing(out: Path) -> None:
    """Raise a UserError if ``out`` exists and is not an empty folder."""
    try:
        if os.path.lexists(out):
            _sweep(out, out.name)
            if not out.is_dir() or any(out.iterdir()):
                raise UserError(
                    f"--out {out}: already exists, and existing files are not replaced; use a new folder"
                )
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UserError(f"--out {out}: cannot be used as a new folder: {reason}") from error


@contextmanager
def work_folder(out: Path, *, inside: bool = False) -> Iterator[Path]:
    """Yield a new folder ``.NAME-…`` next to or inside ``out``; remove it at the end unless it was renamed.

    Folders that killed processes left behind are removed first.
    """
    parent = out if inside else out.parent
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent, out.name)
    made = Path(tempfile.mkdtemp(prefix=_prefix(out.name), dir=parent))
    holder = _Holder()
    hold(made, holder)
    try:
        mask = os.umask(0)
        os.umask(mask)
        made.chmod(0o777 & ~mask)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        del holder


def _prefix(name: str) -> str:
    return f".{name[:50]}-"  # a file's name has at most 255 bytes


def _sweep(parent: Path, name: str) -> None:
    left = re.compile(rf"{re.escape(_prefix(name))}[a-z0-9_]{{8}}")  # as mkdtemp names them
    with suppress(NotADirectoryError):
        for folder in [each for each in parent.iterdir() if left.fullmatch(each.name) and each.is_dir()]:
            if not folder.is_symlink():
                remove_unheld(folder)


def _read_from(error: OSError, made: Path) -> Path | None:
    """Return the file outside the new folder that caused the error, or None."""
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return None
    named = Path(os.fsdecode(error.filename))
    return None if made in (named, *named.parents) else named


def _free(path: Path) -> str:
    with suppress(OSError, StopIteration):
        free = shutil.disk_usage(next(each for each in path.parents if each.exists())).free
        return f" ({in_gb(free)} are free there)"
    return ""
