"""The fork server of the launcher: ranks forked from it start and restart without importing PyTorch.

The server is forked before the launcher opens or computes anything. Only processes that run nothing but
Rankless may start a server. Ranks started from a notebook, a script or a test run in new interpreters, and so
do ranks that cannot use the loaded libraries because of ``cpu_isa`` or a GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rankless.task_kinds import BUILT_IN, kind_of

if TYPE_CHECKING:
    from rankless.hardware.forking import ForkServer

# Modules that every rank imports in addition to those that the launcher imports.
_PRELOADED = ("rankless.launch.worker", "rankless.launch.rank_job")
_allowed = False
_running: ForkServer | None = None


def allow() -> None:
    """Allow :func:`start` to fork the server; only processes that run nothing but Rankless may call this."""
    global _allowed
    _allowed = True


def start(task: str | None = None) -> None:
    """Fork the server if that is allowed; this process must not have computed anything yet.

    A built-in ``task`` is imported first, so that the ranks do not have to import it.
    """
    global _running, _allowed
    if not _allowed:
        return
    _allowed = False  # fork the server only once
    from rankless.hardware.forking import ForkServer, fork_server

    if task in BUILT_IN:
        kind_of(task).open.load()
    with contextlib.suppress(OSError):  # no process can be started, which the start of the ranks will report
        _running = ForkServer(*fork_server("fork server", _prepare))


def running() -> ForkServer | None:
    """Return the server, or None if it is not running."""
    return _running if _running is not None and _running.alive else None


def run_worker(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the worker in the same way as ``python -P -m rankless.launch.worker``, with this environment.

    The rank dies with the server, not with the launcher that is named in ``arguments``.
    """
    os.environ.clear()
    os.environ.update(environment)
    if not sys.flags.safe_path:
        del sys.path[0]  # files in the command's folder or the current one must not be imported as libraries
        os.environ["PYTHONSAFEPATH"] = "1"  # for child processes
    from rankless.hardware import forking
    from rankless.launch import worker

    job, _, *meeting = arguments
    sys.argv = [worker.__file__, job, str(forking.server), *meeting]
    return worker.main()


def _prepare() -> None:
    os.setsid()  # only the launcher receives Ctrl-C from the terminal
    for module in _PRELOADED:
        importlib.import_module(module)
