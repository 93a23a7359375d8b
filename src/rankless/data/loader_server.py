"""Start multiprocessing's fork server for the loader processes.

A rank can fork the server before any threads exist, so that the server inherits the rank's imports.
Otherwise, the server is a new interpreter, which takes seconds to import the modules that loaders need.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import connection, forkserver, resource_tracker, util
from pathlib import Path
from typing import Any, NoReturn

from rankless.hardware.processes import fork, name_process

ENDS = (signal.SIGINT, signal.SIGTERM)  # Signals that ask a rank to exit. Its loader processes ignore them.
_imported: frozenset[str] = frozenset()
"""Modules imported before this process forked the server; empty if this process did not fork the server."""


def fork_early() -> None:
    """Start the fork server by forking this process, so that it inherits the imports.

    This must be called before any computation, because computations start threads, which do not survive a
    fork.
    """
    global _imported
    _imported = frozenset(sys.modules)
    address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    with socket.socket(socket.AF_UNIX) as listener, _ending_signals_blocked():
        listener.bind(address)
        if not util.is_abstract_socket_namespace(address):
            Path(address).chmod(0o600)
        listener.listen()
        alive, ours = os.pipe()
        pid = fork()
        if not pid:
            _serve(listener.fileno(), alive)
        os.close(alive)
    server: Any = forkserver._forkserver
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, ours, pid


def _serve(*descriptors: int) -> NoReturn:
    try:
        name_process("loader server")
        first = 3
        for descriptor in sorted(descriptors):
            os.closerange(first, descriptor)
            first = descriptor + 1
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))
        forkserver.main(*descriptors, [])  # type: ignore[arg-type, call-arg]  # the stubs describe an older version
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:  # the loop raises SystemExit, which must not reach the rank's frames
        os._exit(0)


def ensure(modules: Iterable[str]) -> None:
    """Start the fork server, unless a server that has imported all ``modules`` is running."""
    global _imported
    needed = set(modules)
    if _imported and not needed <= _imported:
        _imported = frozenset()
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
    multiprocessing.get_context("forkserver").set_forkserver_preload(sorted(needed))
    with _ending_signals_blocked():
        forkserver.ensure_running()


@contextmanager
def _ending_signals_blocked() -> Iterator[None]:
    """Block termination signals inside the context, including in processes that are started there.

    A signal to the process group must not stop the loaders of a rank that is about to save.
    """
    resource_tracker.ensure_running()  # must come first, because starting it unblocks the signals
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
