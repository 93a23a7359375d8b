"""Detection of changed files: times and sizes are saved beside the result that was made from them.

Asking for a file costs some 2 µs, for a million of them longer than all else, so several processes ask. They
run this page as a script, without the package and its imports, and start within hundredths of a second.
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
    """Time of change in nanoseconds and size in bytes; :data:`MISSING` where nothing can be seen."""
    try:
        status = os.stat(path)  # noqa: PTH116 - Path takes twice as long, a million times
    except (OSError, ValueError):
        return MISSING
    return status.st_mtime_ns, status.st_size


def touched_since(paths: Iterable[str], moment: int) -> str:
    """The first file that was changed, or replaced, at ``moment`` (ns) or later; else empty.

    The kernel's time of change is asked for, which cannot be set; one in the future is another clock's.
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
    """Return the files whose states :func:`save_states` saved; none if the record is not whole."""
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
    """Return the first file found that is not as :func:`save_states` saved; empty if all are."""
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
    """:func:`changed_file` of every ``parts``-th block from ``part`` on."""
    stat = os.stat  # every tenth of a microsecond counts below
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
