"""Fork a process, name it, or end it together with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Signals that ask a process to stop. Slurm and spot markets send SIGUSR1 some time before they end a job.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # <linux/prctl.h>


def die_with_parent(parent: int | None = None) -> None:
    """Make the kernel kill this process when its parent dies for any reason.

    ``parent`` is the ID of the parent process; if the parent has already died, this process exits at once.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def fork() -> int:
    """Call ``os.fork`` without its warning about threads.

    NumPy's threads tolerate a fork. The caller must make sure that there are no other threads.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def name_process(name: str) -> None:
    """Set the name of this process in ``top`` and ``ps -o comm`` (at most 15 characters)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Block the stop signals inside the context, including in processes that are started there.

    They are meant for a launcher or a rank. A rank that is about to save still needs its loaders.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
