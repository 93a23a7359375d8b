"""Atomic writing of files."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rankless.files.reading import opened

_PART = re.compile(r"\.rankless-[0-9a-f]{16}\.tmp")
_AT_ONCE = 1 << 20  # bytes
_KEPT = 3  # copies of a file that was replaced


def write_atomically(path: Path, text: str) -> None:
    """Replace the content of ``path``: a reader sees the old text or the new, never a part.

    A path in the text that is not UTF-8 gets its own bytes.
    """
    with beside(path) as part:
        part.write_text(text, encoding="utf-8", errors="surrogateescape")


@contextmanager
def beside(path: Path, *, replace: bool = True, durable: bool = True) -> Iterator[Path]:
    """Yield an empty file beside ``path``; it becomes ``path`` at the end, and is removed on an error.

    A link at ``path`` is replaced and never followed, and a file with other names is unchanged under those.
    :func:`sweep` removes what a killed process leaves.
    """
    part, file = _part(path.parent)
    try:
        yield part
        if durable:
            os.fsync(file)
        if replace:
            part.replace(path)
        else:
            _rename_new(part, path)
    finally:
        part.unlink(missing_ok=True)
        os.close(file)


@contextmanager
def token(folder: Path) -> Iterator[Path]:
    """Yield an empty file of an unused, random name in ``folder``; :func:`sweep` removes it after a kill."""
    path, file = _part(folder)
    try:
        yield path
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(file)


def put_aside(path: Path) -> Path:
    """Rename a file inside its folder and return it; :func:`sweep` removes it after a kill."""
    aside = path.with_name(_new_name())
    path.rename(aside)
    return aside


def keep_beside(path: Path) -> Path:
    """Keep a file that is about to be replaced, as ``NAME.replaced-N`` beside it, which is returned.

    Of more than :data:`_KEPT` the oldest go.
    """
    name = re.compile(re.escape(path.name) + r"\.replaced-([0-9]{1,9})")
    matches = (name.fullmatch(entry.name) for entry in path.parent.iterdir())
    numbers = sorted(int(match[1]) for match in matches if match)
    for number in numbers[: 1 - _KEPT]:
        remove_tree(path.with_name(f"{path.name}.replaced-{number}"))
    kept = path.with_name(f"{path.name}.replaced-{numbers[-1] + 1 if numbers else 1}")
    try:
        os.link(path, kept, follow_symlinks=False)
    except OSError:  # a file system without links
        path.rename(kept)
    return kept


def _new_name() -> str:
    return f".rankless-{os.urandom(8).hex()}.tmp"


def _part(folder: Path) -> tuple[Path, int]:
    """Create a file with an unused name, locked while the descriptor is open."""
    while True:
        path = folder / _new_name()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # some network file systems have no locks; then nothing is swept
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if has_name(file, path):
            return path, file
        os.close(file)  # it was swept before it was locked


def has_name(file: int, path: Path) -> bool:
    """Whether ``path`` still names an opened file, which may have been removed before it was locked."""
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False


def _rename_new(part: Path, path: Path) -> None:
    """Rename a file unless the name is taken: plain renaming would replace that file."""
    try:
        os.link(part, path, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: take the name first
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        part.replace(path)


def sweep(folder: Path) -> None:
    """Remove unfinished files of killed processes from ``folder``; those of running ones stay."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _PART.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    _remove_unlocked(entry.path)


def _remove_unlocked(path: str) -> None:
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)  # noqa: PTH108
    finally:
        os.close(file)


def flush(path: Path) -> None:
    """Put a file, or the names in a folder, onto the disk: after a loss of power they are there."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it, or whatever else lies there; what cannot be removed stays.

    ``shutil.rmtree`` opens a named pipe in a folder's place, and waits for a writer.
    """
    with suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def copy(source: Path | str, target: Path, most: int) -> None:
    """Copy a regular file's content to a new file, sharing blocks where the file system supports it.

    Args:
        source: the file to copy.
        target: the new file.
        most: largest size of ``source`` in bytes.
    """
    with opened(source, most) as file:
        old = file.fileno()
        new = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            left = os.fstat(old).st_size  # what is appended meanwhile is not copied: it may never end
            with suppress(OSError):  # not supported here, or only in part: copy the rest by hand
                while left > 0 and (done := os.copy_file_range(old, new, left)):
                    left -= done
            while left > 0 and (rest := os.read(old, min(left, _AT_ONCE))):
                left -= len(rest)
                while rest:
                    rest = rest[os.write(new, rest) :]
        finally:
            os.close(new)
