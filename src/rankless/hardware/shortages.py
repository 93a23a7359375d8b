"""Errors that mean too little memory, in one sentence each: a restart would only meet them again.

Libraries report it in many ways, recognized by some of their words.
"""

from __future__ import annotations

import errno
import os
import re

from rankless.errors import ShortageError, UserError, in_gib
from rankless.hardware.memory import available

_ASKED = re.compile(r"(?:[Tt]ried|[Uu]nable) to allocate ([\d.]+) ?([KMGTP]iB|bytes)")
_CARD = re.compile(r"total capacity of ([\d.]+ [KMGT]iB) of which ([\d.]+ [KMGT]iB) is free")
_GPU = ("CUDA out of memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED", "HIP out of memory")
_HOST = ("DefaultCPUAllocator", "Cannot allocate memory", "Unable to allocate", "std::bad_alloc")
# A loader process that finds no room for a batch gets an error, or a SIGBUS where it was promised some.
_SHARED = ("shared memory(shm)", "out of shared memory", "Bus error")
_SHM = "/dev/shm"


def shortage(error: BaseException) -> UserError | None:
    """The error as a sentence, where it means that memory ran out; None where it does not.

    Returns:
        A :class:`ShortageError` where less would do, of what, the caller adds.
    """
    text = str(error)
    if any(sign in text for sign in _SHARED) or _is_semaphore(error):
        return shared_memory_shortage()
    if type(error).__name__ == "OutOfMemoryError" or any(sign in text for sign in _GPU):
        card = _CARD.search(text)
        there = f" ({card[2]} of {card[1]} are free)" if card else ""
        return ShortageError(f"the GPU is out of memory{_asked(text)}{there}")
    full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if full or isinstance(error, MemoryError) or any(sign in text for sign in _HOST):
        return ShortageError(f"out of memory{_asked(text)} ({in_gib(available())} are free)")
    return None


def shared_memory_shortage() -> UserError:
    """The error when loader processes cannot hand over their batches."""
    try:
        disk = os.statvfs(_SHM)
        size = f", {in_gib(disk.f_blocks * disk.f_frsize)} in all"
    except OSError:
        size = ""
    return UserError(
        f"{_SHM} is full{size}: loader processes hand over their batches there; make it larger (docker run "
        "--shm-size=8g; mount -o remount,size=8g /dev/shm), use fewer `workers`, or none with workers=0"
    )


def _is_semaphore(error: BaseException) -> bool:
    """Python's semaphores lie in /dev/shm as well, and the error names no file."""
    if not isinstance(error, OSError) or error.errno != errno.ENOSPC or error.filename:
        return False
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.endswith("synchronize.py")


def _asked(text: str) -> str:
    match = _ASKED.search(text)
    if not match:
        return ""
    number, unit = match[1].rstrip("."), match[2]  # numpy writes "909. TiB"
    return f": {in_gib(int(number)) if unit == 'bytes' else f'{number} {unit}'} more were asked for"
