"""Recognize out-of-memory errors, which a restart would not fix.

Libraries report them in many ways, so they are recognized by phrases in the message.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from rankless.errors import ShortageError, UserError, in_gib
from rankless.hardware.memory import available

_REQUESTED = re.compile(r"(?:[Tt]ried|[Uu]nable) to allocate ([\d.]+) ?([KMGTP]iB|bytes)")
_CARD = re.compile(r"total capacity of ([\d.]+ [KMGT]iB) of which ([\d.]+ [KMGT]iB) is free")
_GPU = ("CUDA out of memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED", "HIP out of memory")
_HOST = ("DefaultCPUAllocator", "Cannot allocate memory", "Unable to allocate", "std::bad_alloc")
# A loader process without space for a batch gets an error, or SIGBUS if the space had been reserved.
_SHARED = ("shared memory(shm)", "out of shared memory", "Bus error")
_SHM = "/dev/shm"


def shortage(error: BaseException) -> UserError | None:
    """Return a short error if ``error`` means that memory ran out; otherwise, return None.

    The result is a :class:`ShortageError` if using less memory would help; the caller adds advice.
    """
    text = str(error)
    if any(sign in text for sign in _SHARED) or _is_semaphore(error):
        return shared_memory_shortage()
    if type(error).__name__ == "OutOfMemoryError" or any(sign in text for sign in _GPU):
        card = _CARD.search(text)
        there = f" ({card[2]} of {card[1]} are free)" if card else ""
        return ShortageError(f"the GPU is out of memory{_requested(text)}{there}")
    full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if full or isinstance(error, MemoryError) or any(sign in text for sign in _HOST):
        return ShortageError(f"out of memory{_requested(text)} ({in_gib(available())} are free)")
    return None


@contextmanager
def no_hidden_shortage() -> Iterator[None]:
    """Raise a :class:`ShortageError` if the GPU is out of memory in this block, although nothing fails.

    PyTorch catches the error if memory is missing for the workspace of a convolution, and uses another
    algorithm for the rest of the process. Its results have other bits, and whether it is used depends on the
    number of ranks.
    """
    before = _allocations_failed()
    yield
    if _allocations_failed() > before:
        raise ShortageError(
            "the GPU is out of memory for the fastest algorithm of a layer; others need less memory, but "
            "their results have other bits"
        )


def _allocations_failed() -> int:
    """Return how often this process could not allocate memory on its GPU."""
    import torch

    if not torch.cuda.is_initialized():
        return 0
    counts = torch.cuda.memory_stats_as_nested_dict()
    return int(counts["num_ooms"]) + int(counts.get("num_oom_rejections", 0))


def shared_memory_shortage() -> UserError:
    """Return the error for a full /dev/shm, through which loader processes pass their batches."""
    try:
        disk = os.statvfs(_SHM)
        size = f" ({in_gib(disk.f_blocks * disk.f_frsize)} in total)"
    except OSError:
        size = ""
    return UserError(
        f"{_SHM} is full{size}, and loader processes pass their batches through it; enlarge it (docker run "
        "--shm-size=8g, or mount -o remount,size=8g /dev/shm), use fewer `workers`, or set workers=0"
    )


def _is_semaphore(error: BaseException) -> bool:
    """Check whether Python failed to create a semaphore in /dev/shm; such an error names no file."""
    if not isinstance(error, OSError) or error.errno != errno.ENOSPC or error.filename:
        return False
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.endswith("synchronize.py")


def _requested(text: str) -> str:
    match = _REQUESTED.search(text)
    if not match:
        return ""
    number, unit = match[1].rstrip("."), match[2]  # numpy writes "909. TiB"
    return f": {in_gib(int(number)) if unit == 'bytes' else f'{number} {unit}'} more were requested"
