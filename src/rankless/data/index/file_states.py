"""Detect changed files by their modification times and sizes.

A stat call takes about 2 µs, and much longer on a network file system. Several threads wait at the same time.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

MISSING = (-1, -1)  # state of a missing file
BLOCK = 25_000  # number of files that one thread checks at a time
_PREFIX = "depends-"  # prefix of the names of block files


def state(path: str | bytes) -> tuple[int, int]:
    """Return a file's modification time (ns) and size (bytes), or :data:`MISSING` if it cannot be read."""
    try:
        status = os.stat(path)  # noqa: PTH116 - Path takes twice as long
    except (OSError, ValueError):
        return MISSING
    return status.st_mtime_ns, status.st_size


def touched_since(paths: Iterable[str], moment: int) -> str:
    """Return the first file that was changed or replaced at or after ``moment`` (ns), or "" if there is none.

    This compares the kernel's change time (ctime), which users cannot set. A ctime in the future comes from
    another clock and is ignored.
    """
    now = time.time_ns()
    for path in paths:
        try:
            changed = os.stat(path).st_ctime_ns  # noqa: PTH116
        except (OSError, ValueError):
            continue
        if moment <= changed <= now:
            return path
    return ""


def save_states(folder: str, paths: Sequence[str], states: Sequence[tuple[int, int]]) -> None:
    """Save the states of files in ``folder`` for :func:`changed_file`."""
    for start in range(0, len(paths), BLOCK):
        part = states[start : start + BLOCK]
        numbers = array("q", [len(part), *(number for each in part for number in each)])
        names = b"\0".join(map(os.fsencode, paths[start : start + BLOCK]))
        with open(f"{folder}/{_PREFIX}{start:012}", "wb") as file:  # noqa: PTH123
            file.write(numbers.tobytes() + names)


def saved_names(folder: str) -> list[str]:
    """Return the files whose states are saved in ``folder``; empty if they cannot be read."""
    try:
        return [os.fsdecode(path) for block in _blocks(folder) for path, _, _ in _saved(block)]
    except (OSError, ValueError, EOFError):
        return []


def changed_file(folder: str, threads: int) -> str:
    """Return a file that differs from the state saved in ``folder``, or "" if there is none."""
    with ThreadPoolExecutor(threads) as pool:
        return next(filter(None, pool.map(_changed_of, _blocks(folder))), "")


def _blocks(folder: str) -> list[str]:
    names = sorted(os.listdir(folder))  # noqa: PTH208
    return [f"{folder}/{name}" for name in names if name.startswith(_PREFIX)]


def _saved(block: str) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, modification time and size of every file in a block."""
    with open(block, "rb") as file:  # noqa: PTH123
        count = int.from_bytes(file.read(8), sys.byteorder)
        states = array("q")
        states.fromfile(file, 2 * count)
        return zip(file.read().split(b"\0"), states[::2], states[1::2], strict=True)


def _changed_of(block: str) -> str:
    stat = os.stat  # saves an attribute lookup per file
    for path, when, size in _saved(block):
        try:
            status = stat(path)
        except OSError:
            same = (when, size) == MISSING
        else:
            same = status.st_mtime_ns == when and status.st_size == size
        if not same:
            return os.fsdecode(path)
    return ""
