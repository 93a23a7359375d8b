"""Memory available to this process, for checks before large allocations."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rankless.errors import UserError, in_gb
from rankless.hardware.cores import control_groups

_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_V2 = ("memory.max", "memory.current")


def available() -> int:
    """Return the number of bytes that this process can still allocate within all limits."""
    return max(0, min(_limits(), default=sys.maxsize))


def peak(pid: int | None = None) -> int:
    """Return the peak resident memory of a process in bytes, or 0 if it is unknown."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid or 'self'}/status").read_text("ascii", errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    return 0


def ensure(needed: int, what: str, remedy: str, free: int | None = None) -> None:
    """Raise a :class:`UserError` if fewer than ``needed`` bytes are free.

    The message starts with ``what``, the object that needs the memory, and ends with ``remedy``. By default,
    ``free`` is the result of :func:`available`.
    """
    free = available() if free is None else free
    if needed > free:
        raise UserError(
            f"{what} needs at least {in_gb(needed)} of memory, but only {in_gb(free)} are free; {remedy}"
        )


def _limits() -> Iterator[int]:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        yield int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024
    with suppress(ValueError, OSError):
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield from _container()
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        used = 0
        with suppress(OSError, ValueError, IndexError):
            pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
            used = pages * os.sysconf("SC_PAGE_SIZE")
        yield soft - used


def _container(root: Path = Path("/")) -> Iterator[int]:
    for folder, is_v2 in control_groups("memory", root):
        limit, used = _V2 if is_v2 else _V1
        with suppress(OSError, ValueError):  # "max" is not a number: there is no limit
            free = int((folder / limit).read_text("ascii")) - int((folder / used).read_text("ascii"))
            # Cached file pages count as used, but are reclaimed when memory is needed.
            yield free + _file_pages(folder)


def _file_pages(group: Path) -> int:
    with suppress(OSError, ValueError):
        lines = (group / "memory.stat").read_text("ascii").splitlines()
        counts = {name: int(count) for name, count in map(str.split, lines)}
        return counts.get("total_inactive_file", counts.get("inactive_file", 0))
    return 0
