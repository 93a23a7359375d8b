"""Detection of changed files: times and sizes of files are saved with the result computed from them.

A stat call costs about 2 µs. For a million files that would dominate, so several processes share the work.
They run this module as a script, without importing the package, and start within hundredths of a second.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Iterable, Sequence

MISSING = (-1, -1)
"""The state of a file that is not there."""
BLOCK = 25_000
"""So many files are asked for at a time; fewer than two blocks are asked for in this process."""
_NAMES, _STATES, _BLOCKS = "depends.paths", "depends.states", "depends.blocks"


def state(path: str | bytes) -> tuple[int, int]:
    """Return modification time (ns) and size (bytes) of a file; :data:`MISSING` if it cannot be read."""
    try:
        status = os.stat(path)  # noqa: PTH116 - Path takes twice as long, a million times
    except (OSError, ValueError):
        return MISSING
    return status.st_mtime_ns, status.st_size


def touched_since(paths: Iterable[str], moment: int) -> str:
    """Return the first file changed or replaced at ``moment`` (ns) or later; "" if there is none.

    It compares the kernel's change time (ctime), which users cannot set. A ctime in the future comes from
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
    """Save the states of ``paths`` for :func:`changed_file`."""
    blocks = array("q")
    with open(f"{folder}/{_NAMES}", "wb") as names, open(f"{folder}/{_STATES}", "wb") as saved:  # noqa: PTH123
        for start in range(0, len(paths), BLOCK):
            text = b"\0".join(os.fsencode(path) for path in paths[start : start + BLOCK])
            blocks.extend((names.tell(), len(text)))
            names.write(text)
            array("q", (part for each in states[start : start + BLOCK] for part in each)).tofile(saved)
    with open(f"{folder}/{_BLOCKS}", "wb") as file:  # noqa: PTH123
        blocks.tofile(file)


def saved_names(folder: str) -> list[str]:
    """Return the files recorded by :func:`save_states`; none if the record is incomplete."""
    paths: list[str] = []
    try:
        with open(f"{folder}/{_NAMES}", "rb") as names:  # noqa: PTH123
            blocks = _numbers(folder, _BLOCKS)
            for start, length in zip(blocks[::2], blocks[1::2], strict=True):
                names.seek(start)
                paths += map(os.fsdecode, names.read(length).split(b"\0"))
    except (OSError, ValueError, EOFError):
        return []
    return paths


def changed_file(folder: str, processes: int) -> str:
    """Return the first file that differs from its saved state; "" if there is none."""
    count = len(_numbers(folder, _BLOCKS)) // 2
    helpers = min(processes, count) - 1
    command = [sys.executable, "-I", "-S", __file__, folder]
    with contextlib.ExitStack() as stack:
        started = []
        for part in range(helpers):
            process = subprocess.Popen(
                [*command, str(part), str(helpers + 1)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
            )
            stack.callback(_end, process)
            started.append(process)
        changed = _changed_of(folder, helpers, helpers + 1) if count else ""
        for process in started:
            if changed:
                break
            answer = process.communicate()[0]
            if process.returncode:
                raise OSError(f"a process that looks at files ended with {process.returncode}")
            changed = os.fsdecode(answer)
    return changed


def _changed_of(folder: str, part: int, parts: int) -> str:
    """Run :func:`changed_file` on every ``parts``-th block, starting with ``part``."""
    stat = os.stat  # saves an attribute lookup per file
    blocks, states = _numbers(folder, _BLOCKS), _numbers(folder, _STATES)
    with open(f"{folder}/{_NAMES}", "rb") as names:  # noqa: PTH123
        for number in range(part, len(blocks) // 2, parts):
            names.seek(blocks[2 * number])
            text = names.read(blocks[2 * number + 1])
            if len(text) != blocks[2 * number + 1]:
                raise EOFError(f"{folder}/{_NAMES} is cut short")
            start = 2 * BLOCK * number
            saved = states[start : start + 2 * BLOCK]
            for path, when, size in zip(text.split(b"\0"), saved[::2], saved[1::2], strict=True):
                try:
                    status = stat(path)
                except OSError:
                    same = (when, size) == MISSING
                else:
                    same = status.st_mtime_ns == when and status.st_size == size
                if not same:
                    return os.fsdecode(path)
    return ""


def _numbers(folder: str, name: str) -> array[int]:
    made = array("q")
    with open(f"{folder}/{name}", "rb") as file:  # noqa: PTH123
        made.frombytes(file.read())
    return made


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()


if __name__ == "__main__":
    _, folder, first, every = sys.argv
    sys.stdout.buffer.write(os.fsencode(_changed_of(folder, int(first), int(every))))
