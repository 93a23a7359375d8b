"""Do what ``python -m MODULE ARGUMENTS`` does, prepared: ``prepared.py KIND [WORDS] -m MODULE ARGUMENTS``."""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path

NEW_MOUNTS, BIND, PRIVATE = 0x20000, 1 << 12, 1 << 18 | 1 << 14  # of <sched.h> and <sys/mount.h>
libc = ctypes.CDLL(None, use_errno=True)


def done(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def common() -> None:
    """Take from root what lets it pass over permissions, from this process and all that it starts."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH of <linux/capability.h>
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP of <linux/prctl.h>
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # version 3
    libc.capget(header, sets)
    for number in range(3):  # effective, permitted, inheritable
        sets[number] &= ~0b110
    done(libc.capset(header, sets))


def nohup() -> None:
    """Ignore the end of the terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def disk(folder: str, own: str) -> None:
    """Let one folder be another, as on another machine's disk, for this process and all that it starts."""
    done(libc.unshare(NEW_MOUNTS))
    done(libc.mount(None, b"/", None, PRIVATE, None))
    done(libc.mount(own.encode(), folder.encode(), None, BIND, None))


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    at = words.index("-m")
    {"common": common, "nohup": nohup, "disk": disk}[kind](*words[:at])
    sys.argv = words[at + 1 :]
    sys.path[0] = str(Path.cwd())
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
