"""Count the cores that this process may use, given its CPU affinity and control groups (containers)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rankless.hardware.control_groups import control_groups


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use, at least one.

    ``root`` is the folder that contains ``proc`` and ``sys``.
    """
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min([own, *quotas(root)]), 1)


def quotas(root: Path) -> Iterator[int]:
    """Yield the number of cores that each control group allows, rounded down."""
    for folder, is_v2 in control_groups("cpu", root):
        names = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        with suppress(OSError, ValueError):  # "max" is not a number: there is no limit
            words = [word for name in names for word in (folder / name).read_text("ascii").split()]
            quota, period = map(int, words)
            if quota > 0 and period > 0:
                yield quota // period
