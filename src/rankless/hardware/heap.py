"""Configure the C library's heap for training steps, which allocate and free tens of megabytes each."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _PERTURB, _ARENA_MAX = -1, -3, -6, -8  # <malloc.h>
# If the user sets one of these, nothing is changed.
_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")


def hold_freed_memory() -> None:
    """Make glibc keep freed memory for later allocations.

    By default, glibc returns large blocks to the kernel, which clears every page again when the next batch
    allocates them. All threads share one arena, which takes less memory than one arena per thread. The change
    cannot be undone, so call this only in Rankless's own processes, preferably before threads start.
    """
    if any(name in os.environ for name in _OF_THE_USER):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has no such setting
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, 1 << 30)
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def fill_with_nan() -> None:
    """Make glibc set every bit of an allocated block to 1, which is NaN in every floating-point type.

    A result that depends on uninitialized memory then becomes NaN instead of changing from run to run.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_PERTURB, 0x100)  # the fill is the complement of the low byte; 0 would switch it off
