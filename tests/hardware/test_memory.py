"""How much memory there is, as the system says it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rankless.hardware import memory

LIMITED = """
import resource
from rankless.hardware import memory
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
print(memory.available())
"""


def test_it_is_less_than_the_machine_has():
    with open("/proc/meminfo") as file:  # noqa: PTH123
        total = int(file.readline().split()[1]) * 1024
    assert 0 < memory.available() <= total


@pytest.mark.processes
def test_a_limit_of_the_process_counts():
    said = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True)
    assert 500_000_000 < int(said.stdout) < 1 << 30


def test_a_limit_of_a_container_counts(tmp_path):
    inner = tmp_path / "sys/fs/cgroup/outer/inner"
    inner.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/outer/inner\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("1000\n")
    (inner.parent / "memory.max").write_text("5000\n")
    (inner.parent / "memory.current").write_text("3000\n")
    (inner.parent / "memory.stat").write_text("anon 2\ninactive_file 700\n")
    assert list(memory._container(tmp_path)) == [2700]
