"""The cache folder: its path, locks, and the removal of unused content.

Locks use flock, so the kernel releases a lock when its process ends for any reason.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from rankless.files.writing import has_name

UNUSED = 30 * 24 * 3600
"""Number of seconds without use after which the next write removes the content."""


def cache_folder() -> Path:
    """Return ``$RANKLESS_CACHE``, ``$XDG_CACHE_HOME/rankless`` or ``~/.cache/rankless``.

    The folder may not exist.
    """
    if custom := os.environ.get("RANKLESS_CACHE"):
        return Path(custom).expanduser().absolute()
    general = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(general) if general else Path.home() / ".cache"
    except RuntimeError:  # no home directory
        base = Path(tempfile.gettempdir()) / f"cache-{os.geteuid()}"
        try:
            make_private(base)
        except OSError:  # it belongs to another user
            base = private_folder()
    return (base / "rankless").absolute()


def make_private(folder: Path) -> None:
    """Create a private folder; raise a PermissionError if it exists and is not private."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not is_private(folder):
        raise PermissionError(errno.EPERM, f"{folder} belongs to another user or is accessible to others")


def is_private(folder: Path) -> bool:
    """Check whether ``folder`` is owned by this user, inaccessible to other users, and not a link."""
    try:
        state = folder.lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o077


@contextlib.contextmanager
def locked(folder: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lock ``folder``, creating it if needed; call ``waiting`` if another process has the lock."""
    file = _lock(folder, waiting)
    while not has_name(file, folder / "lock"):  # the lock file was removed in the meantime
        os.close(file)
        file = _lock(folder, waiting)
    try:
        yield
    finally:
        os.close(file)


def _lock(folder: Path, waiting: Callable[[], None]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
    except BaseException:
        os.close(file)
        raise
    return file


def hold(folder: Path, holder: object) -> None:
    """Protect ``folder`` from :func:`remove_unheld` for the lifetime of ``holder`` in this process."""
    with contextlib.suppress(OSError):  # some network file systems have no locks
        file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(holder, os.close, file)
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def remove_unheld(folder: Path) -> None:
    """Remove ``folder`` unless a process protects it with :func:`hold`."""
    with contextlib.suppress(OSError):
        file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(file)


def remove_unused(home: Path, mark: str) -> None:
    """Remove the folders in ``home`` whose file ``mark`` has not been touched for :data:`UNUSED` seconds."""
    for folder in list(home.iterdir()):
        with contextlib.suppress(OSError):
            newest = (folder / mark).stat() if (folder / mark).exists() else folder.stat()
            if time.time() - newest.st_mtime < UNUSED:
                continue
            with locked(folder, waiting=_skip):
                for entry in [each for each in folder.iterdir() if each.is_dir()]:
                    remove_unheld(entry)
                if not any(each.is_dir() for each in folder.iterdir()):
                    shutil.rmtree(folder, ignore_errors=True)


def _skip() -> None:
    raise BlockingIOError("another process has locked the folder")


def private_folder() -> Path:
    """Create and return a temporary folder that is removed when this process exits."""
    folder = Path(tempfile.mkdtemp(prefix="rankless-"))
    remove_at_exit(folder)
    return folder


def remove_at_exit(folder: Path) -> None:
    """Remove a folder when this process exits, but not when a forked child exits."""
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
