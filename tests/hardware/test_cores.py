"""The number of cores is what a container allows, read from files as the kernel lays them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankless.hardware.cores import quotas, usable_cores

V1 = "5:memory:/m\n4:cpu,cpuacct:/docker/abc\n0::/"


def v1(folder: str, quota: str) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000"}


def laid_out(root: Path, group: str | None, files: dict[str, str]) -> Path:
    found = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {**found, **({"proc/self/cgroup": group} if group else {})}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        (None, {}, []),
        ("0::/", {}, []),
        ("0::/", {"cpu.max": "max 100000"}, []),
        ("0::/", {"cpu.max": "250000 100000"}, [2]),
        ("0::/", {"cpu.max": "9900000 100000"}, [99]),
        (  # the limit of a slice around it counts
            "0::/user.slice/job.scope",
            {"user.slice/cpu.max": "300000 100000", "user.slice/job.scope/cpu.max": "max 100000"},
            [3],
        ),
        (V1, v1("cpu,cpuacct/docker/abc", "400000"), [4]),
        (V1, v1("cpu", "200000"), [2]),  # a container that sees its own group as the root
        (V1, v1("cpu", "-1"), []),
        ("nonsense\n0::/../..", {"cpu.max": "x y"}, []),
    ],
)
def test_a_quota_of_any_group_around_the_process_counts(
    group: str | None, files: dict[str, str], cores: list[int], tmp_path: Path
) -> None:
    assert [*quotas(laid_out(tmp_path, group, files))] == cores


def test_affinity_counts_and_there_is_always_a_core(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    assert usable_cores(laid_out(tmp_path / "much", "0::/", {"cpu.max": "9900000 100000"})) == len(before)
    assert usable_cores(laid_out(tmp_path / "half", "0::/", {"cpu.max": "50000 100000"})) == 1
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)
