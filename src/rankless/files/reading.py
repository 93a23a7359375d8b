"""Read untrusted files: only regular files, and never more than a limited number of bytes.

Reading a pipe may block forever, and a device such as ``/dev/zero`` never ends. Every function raises an
``OSError`` with a sentence as its ``strerror``, so callers can report all of them in the same way.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

from rankless.hardware.memory import available

MIB = 1 << 20
YAML = MIB  # a recipe or a data.yaml; parsing a megabyte takes seconds
CFG = MIB
NAMES = 16 * MIB
LABELS = 64 * MIB  # the annotations of one image
POINTER = 4096  # `last`, `best`

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def opened(path: str | os.PathLike[str], most: int | None = None) -> io.FileIO:
    """Open a regular file for unbuffered reading without waiting for a writer.

    Raises:
        OSError: the file is not a regular file, or has more than ``most`` bytes.
    """
    name = os.fspath(path)
    if "\0" in name:
        raise OSError(errno.EINVAL, "its name contains a NUL character, which is not allowed", name)
    try:
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:  # the file is a socket
            raise _irregular(stat.S_IFSOCK, name) from None
        raise
    try:
        state = os.fstat(file)
        kind = stat.S_IFMT(state.st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if kind != stat.S_IFREG:
            raise _irregular(kind, name)
        if most is not None and state.st_size > most:
            raise _too_large(state.st_size, f"the allowed {most:,}", name)
        return io.FileIO(file, "rb")
    except BaseException:
        os.close(file)
        raise


def read_bytes(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """Read a regular file of at most ``most`` bytes (by default, the available memory)."""
    limit = available() if most is None else most
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= limit:
            content = file.readall() if size else _read_up_to(file, limit)  # /proc reports no sizes
            size = len(content)
            if size <= limit:
                return content
    allowed = f"the allowed {limit:,}" if most is not None else f"the {limit:,} bytes of free memory"
    raise _too_large(size, allowed, os.fspath(path))


def read_text(
    path: str | os.PathLike[str],
    most: int | None = None,
    *,
    encoding: str = "utf-8-sig",
    errors: str = "strict",
) -> str:
    r"""Read the text of a regular file, with line endings converted to ``\n``; see :func:`read_bytes`."""
    content = io.BytesIO(read_bytes(path, most))
    return io.TextIOWrapper(content, encoding=encoding, errors=errors).read()


def opened_text(
    path: str | os.PathLike[str], *, errors: str = "strict", newline: str | None = None
) -> io.TextIOWrapper:
    """Open a regular UTF-8 file for reading text; see :func:`opened`."""
    return io.TextIOWrapper(io.BufferedReader(opened(path)), "utf-8-sig", errors, newline)


def reason(error: OSError | UnicodeDecodeError) -> str:
    """Return the reason why a file could not be read, without the file's name."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text (byte {error.start})"
    return error.strerror or str(error)


def is_file(path: str | os.PathLike[str]) -> bool:
    """Check whether ``path`` is a regular file; return False if it cannot be accessed."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # a name that is too long, a loop of links, or a NUL
        return False


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Check whether a path or directory entry is a folder; return False if it cannot be accessed."""
    try:  # a directory entry needs no system call
        return path.is_dir() if isinstance(path, os.DirEntry) else Path(path).is_dir()
    except (OSError, ValueError):
        return False


def _read_up_to(file: io.FileIO, limit: int) -> bytes:
    content = bytearray()
    while len(content) <= limit and (block := file.read(1 << 16)):
        content += block
    return bytes(content)


def _too_large(size: int, most: str, name: str) -> OSError:
    return OSError(errno.EFBIG, f"it has {size:,} bytes, more than {most}", name)


def _irregular(kind: int, name: str) -> OSError:
    what = _KINDS.get(kind, "a special file")
    return OSError(errno.EINVAL, f"it is {what}; expected a regular file; copy its contents to a file", name)
