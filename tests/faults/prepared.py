"""Do what ``python -m MODULE ARGUMENTS`` does, prepared: ``prepared.py KIND -m MODULE ARGUMENTS``."""

from __future__ import annotations

import ctypes
import runpy
import signal
import sys
from pathlib import Path


def common() -> None:
    """Take from root what lets it pass over permissions, from this process and all that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH of <linux/capability.h>
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP of <linux/prctl.h>
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # version 3
    libc.capget(header, sets)
    for number in range(3):  # effective, permitted, inheritable
        sets[number] &= ~0b110
    assert not libc.capset(header, sets), ctypes.get_errno()


def nohup() -> None:
    """Ignore the end of the terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


if __name__ == "__main__":
    kind, _, *sys.argv = sys.argv[1:]
    {"common": common, "nohup": nohup}[kind]()
    sys.path[0] = str(Path.cwd())
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
