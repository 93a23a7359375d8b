"""Count the cores that this process may use, given its CPU affinity and control groups (containers)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use, at least one.

    ``root`` is the folder that contains ``proc`` and ``sys``.
    """
    return max(min([len(os.sched_getaffinity(0)), *quotas(root)]), 1)


def quotas(root: Path) -> Iterator[int]:
    """Yield the number of cores that each control group allows, rounded down."""
    for folder, is_v2 in control_groups("cpu", root):
        names = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        with suppress(OSError, ValueError):  # "max" is not a number: there is no limit
            words = [word for name in names for word in (folder / name).read_text("ascii").split()]
            quota, period = map(int, words)
            if quota > 0 and period > 0:
                yield quota // period


def control_groups(controller: str, root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folder of each control group, and whether the group uses version 2.

    Ancestors are included because their limits apply as well. In a container, the folder of the process's own
    group may be missing. ``root`` is the folder that contains ``proc`` and ``sys``.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        names = [name for name in path.split("/") if name not in ("", ".", "..")]
        if not controllers:
            mounts = [root / "sys/fs/cgroup"]
        else:
            matches = controller in controllers.split(",")
            mounts = [root / "sys/fs/cgroup" / name for name in (controllers, controller) if matches]
        for mount in mounts:
            for count in range(len(names), -1, -1):
                yield mount.joinpath(*names[:count]), not controllers
