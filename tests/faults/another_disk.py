"""Run ``python -m MODULE ARGUMENTS`` where one folder is another, as on another machine's disk.

Only this process, and those that it starts, see it: ``another_disk.py FOLDER OWN -m MODULE ARGUMENTS``.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
from pathlib import Path

NEW_MOUNTS, BIND, PRIVATE = 0x20000, 1 << 12, 1 << 18 | 1 << 14  # of <sched.h> and <sys/mount.h>


def _done(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    libc = ctypes.CDLL(None, use_errno=True)
    folder, own, _, *sys.argv = sys.argv[1:]
    _done(libc.unshare(NEW_MOUNTS))
    _done(libc.mount(None, b"/", None, PRIVATE, None))
    _done(libc.mount(own.encode(), folder.encode(), None, BIND, None))
    sys.path[0] = str(Path.cwd())
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
