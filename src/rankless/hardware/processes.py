"""Processes: forked, named, and bound to the life of the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # <linux/prctl.h>


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies, however that happens (Linux).

    Args:
        parent: the id of the process that started this one, which may have died before this call; this one
            then ends at once. If not given, nothing is checked.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def fork() -> int:
    """``os.fork`` without its warning about threads: NumPy's are made for it; rule out others before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def name_process(name: str) -> None:
    """Give this process the name, of 15 characters at most, that ``top`` and ``ps -o comm`` show (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
