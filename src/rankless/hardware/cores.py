"""The number of cores this process may use, by its affinity and its control group (a container's)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that are this process's to use, at least one.

    Args:
        root: where ``proc`` and ``sys`` lie.
    """
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min([own, *(int(quota) for quota in _quotas(root))]), 1)


def _quotas(root: Path) -> Iterator[float]:
    """The cores' worth of time that each group around this process may use, where it is limited."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:  # version 2
            for folder in _around(root / "sys/fs/cgroup", path):
                yield from _quota(folder / "cpu.max")
        elif "cpu" in controllers.split(","):
            for name in (controllers, "cpu"):
                for folder in _around(root / "sys/fs/cgroup" / name, path):
                    yield from _quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")


def _around(mount: Path, path: str) -> Iterator[Path]:
    """The group's folder and those above it; in a container the upper ones may be all that there is."""
    names = [name for name in path.split("/") if name not in ("", ".", "..")]
    for count in range(len(names), -1, -1):
        yield mount.joinpath(*names[:count])


def _quota(*files: Path) -> Iterator[float]:
    """Microseconds of each period that may be used, over the period: none where it says ``max`` or -1."""
    try:
        values = [value for file in files for value in file.read_text(encoding="ascii").split()]
        quota, period = map(int, values)
    except (OSError, ValueError):
        return
    if quota > 0 and period > 0:
        yield quota / period
