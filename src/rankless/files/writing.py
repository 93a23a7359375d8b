"""Write, rename, copy and remove files safely, even if the process is killed."""

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
_KEPT = 3  # copies of a replaced file


def write_atomically(path: Path, text: str) -> None:
    """Replace the contents of ``path``; a reader sees either the old or the new text, never part of one.

    Surrogates, as in a path that is not valid UTF-8, are written as the original bytes.
    """
    with beside(path) as part:
        part.write_text(text, encoding="utf-8", errors="surrogateescape")


@contextmanager
def beside(path: Path, *, replace: bool = True, durable: bool = True) -> Iterator[Path]:
    """Yield an empty file next to ``path``; rename it to ``path`` at the end, or remove it on an error.

    A link at ``path`` is replaced and never followed, and other hard links to the old file keep its contents.
    :func:`sweep` removes the files of killed processes.
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
    """Yield an empty file with a random name in ``folder``; remove it at the end."""
    path, file = _part(folder)
    try:
        yield path
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(file)


def put_aside(path: Path) -> Path:
    """Rename a file to a temporary name, which :func:`sweep` removes after a crash; return the new path."""
    aside = path.with_name(_new_name())
    path.rename(aside)
    return aside


def keep_beside(path: Path) -> Path:
    """Keep the old version of a file as ``NAME.replaced-N`` before it is replaced; return the new path.

    Only the newest :data:`_KEPT` copies are kept.
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
    """Create a file with an unused name; return its path and a descriptor that locks it while open."""
    while True:
        path = folder / _new_name()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if has_name(file, path):
            return path, file
        os.close(file)  # another process removed it before it was locked


def has_name(file: int, path: Path) -> bool:
    """Check whether ``path`` still refers to the open file."""
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False


def _rename_new(part: Path, path: Path) -> None:
    try:
        os.link(part, path, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: take the name first
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        part.replace(path)


def sweep(folder: Path) -> None:
    """Remove unfinished files that killed processes left behind in ``folder``."""
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
    """Flush a file, or the names in a folder, to disk so that they survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_tree(path: Path) -> None:
    """Remove a folder and its contents, or any other file; ignore errors.

    Unlike ``shutil.rmtree``, this does not open a named pipe and wait for a writer.
    """
    with suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def copy(source: Path | str, target: Path, most: int) -> None:
    """Copy a regular file of at most ``most`` bytes to a new file; share disk blocks where supported."""
    with opened(source, most) as old, target.open("xb") as new:
        left = os.fstat(old.fileno()).st_size  # bytes appended in the meantime are not copied
        with suppress(OSError):  # not supported here: copy the rest below
            while left > 0 and (done := os.copy_file_range(old.fileno(), new.fileno(), left)):
                left -= done
        while left > 0 and (rest := old.read(min(left, _AT_ONCE))):
            left -= new.write(rest)
