"""Count the cores that this process may use, given its CPU affinity and control groups (containers)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use, at least one.

    ``root`` is the folder that contains ``proc`` and ``sys``.
    """
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min([own, *(int(quota) for quota in _quotas(root))]), 1)


def _quotas(root: Path) -> Iterator[float]:
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:  # control groups, version 2
            for folder in _with_ancestors(root / "sys/fs/cgroup", path):
                yield from _quota(folder / "cpu.max")
        elif "cpu" in controllers.split(","):
            for name in (controllers, "cpu"):
                for folder in _with_ancestors(root / "sys/fs/cgroup" / name, path):
                    yield from _quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")


def _with_ancestors(mount: Path, path: str) -> Iterator[Path]:
    """Yield a control group's folder and its ancestors; in a container, the folder itself may be missing."""
    names = [name for name in path.split("/") if name not in ("", ".", "..")]
    for count in range(len(names), -1, -1):
        yield mount.joinpath(*names[:count])


def _quota(*files: Path) -> Iterator[float]:
    """Yield the limit in cores (quota divided by period), or nothing if the quota is ``max`` or -1."""
    try:
        values = [value for file in files for value in file.read_text(encoding="ascii").split()]
        quota, period = map(int, values)
    except (OSError, ValueError):
        return
    if quota > 0 and period > 0:
        yield quota / period
