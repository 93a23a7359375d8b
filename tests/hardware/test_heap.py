"""Freed memory, as the kernel counts the pages that it clears."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Takes 48 MiB and gives them back, thirty times.
TAKEN_AGAIN = """
import ctypes, resource
from rankless.hardware.heap import hold_freed_memory
hold_freed_memory()
libc = ctypes.CDLL(None)
libc.prctl(41, 1, 0, 0, 0)  # pages of 2 MiB would be cleared in far fewer steps (PR_SET_THP_DISABLE)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for _ in range(30):
    block = libc.malloc(ctypes.c_size_t(48 << 20))
    ctypes.memset(block, 1, 48 << 20)
    libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def _pages_cleared(**variables: str) -> int:
    said = subprocess.run(
        [sys.executable, "-c", TAKEN_AGAIN],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(said.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
@pytest.mark.processes
def test_what_is_taken_again_is_cleared_once() -> None:
    once = (48 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert _pages_cleared() < 3 * once
    assert _pages_cleared(MALLOC_MMAP_THRESHOLD_="131072") > 20 * once  # what people set themselves stays
