"""The number of cores is what a container allows, read from files as the kernel lays them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankless.hardware.cores import usable_cores

V1 = "5:memory:/m\n4:cpu,cpuacct:/docker/abc\n0::/\n"


def laid_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "9900000 100000\n"}, 8),
        (  # the limit of a slice around it counts
            {
                "proc/self/cgroup": "0::/user.slice/job.scope\n",
                "sys/fs/cgroup/user.slice/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/user.slice/job.scope/cpu.max": "max 100000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (  # a container that sees its own group as the root
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
        ({"proc/self/cgroup": "nonsense\n0::/../..\n", "sys/fs/cgroup/cpu.max": "x y\n"}, 8),
    ],
)
def test_a_quota_of_any_group_around_the_process_counts(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_cores(laid_out(tmp_path, files)) == cores


def test_affinity_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert usable_cores(tmp_path) == 1
    assert usable_cores() == 1
