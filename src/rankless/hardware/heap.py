"""The C library's heap: how it treats the tens of MB that every step takes and gives back."""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _PERTURB, _ARENA_MAX = -1, -3, -6, -8  # <malloc.h>
# What people set themselves stays.
_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")


def hold_freed_memory() -> None:
    """Make glibc keep freed memory for later allocations (Linux; elsewhere this does nothing).

    By default it returns large blocks to the kernel, which clears every page of them when the next batch
    takes them again. One arena for all threads holds less than one for each. Only for processes that are
    Rankless's own: it cannot be undone. Best called before threads start.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _OF_THE_USER):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, 1 << 30)
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def fill_with_nan() -> None:
    """Have glibc fill every block that it hands out with ones, which are NaN in every floating type.

    A result that depends on memory that nobody wrote then shows, instead of being now this and now that.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_PERTURB, 0x100)  # the fill is the complement of the low byte; 0 would switch it off
