"""Fork processes that have already imported PyTorch, because its import takes seconds.

A process forks a server before it computes anything: computations start threads, which do not survive a fork.
The server runs the loop of multiprocessing's fork server. It forks loader processes for multiprocessing, and
ranks for :class:`ForkServer`. What a child runs reaches it as a pickle, over a pipe that only it and the
process that asked for it hold.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, reduction, resource_tracker
from typing import Any, NoReturn

from rankless.hardware.processes import (
    STOP_SIGNALS,
    die_with_parent,
    fork,
    name_process,
    stop_signals_blocked,
)

_MULTIPROCESSING: Any = forkserver._forkserver  # the state of multiprocessing's own server
_PATIENCE = 300.0  # seconds for the server's imports and a fork, which may read from a slow network disk
_imported: frozenset[str] = frozenset()
"""Modules imported before this process forked the server of its loaders; empty if it did not fork one."""
server = 0
"""The process ID of the server that has forked this process."""


class ForkServer:
    """A connection to the server at ``address``, which ends when no process holds ``alive`` any more.

    ``pid`` is the server's process ID if this process has forked it.
    """

    def __init__(self, address: str, alive: int, pid: int = 0) -> None:
        self._address, self._alive, self.pid = address, alive, pid
        self.code: int | None = None
        self.cause = ""  # why the launcher killed the server, as in "did not answer for 300 s and was killed"

    @property
    def alive(self) -> bool:
        return self.code is None

    def fork(
        self, function: Callable[..., int], *arguments: Any, streams: Sequence[int] = ()
    ) -> ForkedProcess:
        """Call ``function(*arguments)`` in a new process, and return when the process leads its own session.

        The process exits with the code that the function returns. ``streams`` are its standard input, output
        and error, if they are not the server's. If the server is dead, the process counts as killed.
        """
        status, reports = os.pipe()
        takes, gives = os.pipe()
        leader, leads = os.pipe()
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(self._address)
                # In fourth place, multiprocessing sends its resource tracker, which the process does not use.
                reduction.sendfds(client, [takes, reports, self._alive, self._alive, leads, *streams])
        except OSError:  # the server is dead, or has to be
            self._kill()
        for descriptor in (takes, reports, leads):
            os.close(descriptor)
        if not select.select([status], [], [], _PATIENCE)[0]:
            self.cause = f"did not answer for {_PATIENCE:g} s and was killed"
            self._kill()
        process = ForkedProcess(self, status)
        with contextlib.suppress(BrokenPipeError), os.fdopen(gives, "wb") as request:
            request.write(pickle.dumps({}) + pickle.dumps(_Call(function, arguments)))
        os.read(leader, 1)
        os.close(leader)
        return process

    def reap(self) -> None:
        """Wait for the server, which has closed its pipes, and keep its exit code."""
        if self.pid and self.alive:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _kill(self) -> None:
        if self.pid and self.alive:
            os.kill(self.pid, signal.SIGKILL)


class ForkedProcess:
    """A forked process, which is the leader of a process group and a session.

    It dies with its server, so it counts as killed if the server dies before it reports an exit code.
    """

    def __init__(self, server: ForkServer, status: int) -> None:
        self._server, self._status = server, status
        self.returncode: int | None = None
        self.pid = self._reported() or server.pid

    def poll(self) -> int | None:
        """Return the exit code, or None while the process is running."""
        return self._exit_code(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process and return its exit code; raise TimeoutExpired after ``timeout`` seconds."""
        code = self._exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _exit_code(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            code = self._reported()
            if code is not None:
                self.returncode = code
                os.close(self._status)
        return self.returncode

    def _reported(self) -> int | None:
        """Return what the server reports next: the process ID, and later the exit code."""
        try:
            return int(forkserver.read_signed(self._status))
        except EOFError:
            os.close(self._status)
            self._server.reap()
            self.returncode = -signal.SIGKILL
            return None


@dataclass
class _Call:
    """What multiprocessing's fork server runs in a new process."""

    function: Callable[..., int]
    arguments: tuple[Any, ...]

    def _bootstrap(self, _: object) -> int:
        os.setsid()
        for number, given in enumerate((forkserver.get_inherited_fds() or [])[1:]):
            os.dup2(given, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        with contextlib.suppress(OSError):  # there is no standard input
            sys.stdin = open(0, closefd=False)  # noqa: SIM115  # the server has replaced its own
        resource_tracker._resource_tracker._fd = None  # type: ignore[attr-defined]  # start one when needed
        code: Any = 1
        try:
            code = self.function(*self.arguments)
        except SystemExit as end:
            code = end.code
        except BaseException:
            sys.excepthook(*sys.exc_info())
        threading._shutdown()  # type: ignore[attr-defined]  # as an interpreter does at its end
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        return code if isinstance(code, int) else int(code is not None)


def fork_server(name: str, prepare: Callable[[], object] = lambda: None) -> tuple[str, int, int]:
    """Fork this process as a server that dies with it, and call ``prepare`` there.

    Return the arguments of :class:`ForkServer`. This process must not have computed anything yet.
    """
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with socket.socket(socket.AF_UNIX) as listener, stop_signals_blocked():
        with tempfile.TemporaryDirectory(prefix="rankless-") as folder:
            listener.bind(f"{folder}/server")
            # Without the file, only this process reaches the socket, whatever cleans up temporary files.
            address = f"/proc/self/fd/{os.open(f'{folder}/server', os.O_PATH)}"
        listener.listen()
        ended, alive = os.pipe()
        pid = fork()
        if not pid:
            try:
                die_with_parent(parent)
                name_process(name)
                first = 3
                for descriptor in sorted((listener.fileno(), ended)):
                    os.closerange(first, descriptor)
                    first = descriptor + 1
                os.closerange(first, os.sysconf("SC_OPEN_MAX"))
                for number in STOP_SIGNALS:
                    if callable(signal.getsignal(number)):  # a handler; ignored signals stay ignored
                        signal.signal(number, signal.SIG_DFL)
                prepare()
                serve(listener.fileno(), ended)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:  # never return to the frames of the parent
                os._exit(1)
        os.close(ended)
    return address, alive, pid


def serve(listener: int, ended: int) -> NoReturn:
    """Fork processes until every process that holds the other end of the pipe ``ended`` is gone."""
    global server
    server = os.getpid()
    gc.collect()
    gc.freeze()  # garbage collection in a forked process then skips the imports and copies no pages of them
    with contextlib.suppress(SystemExit, OSError):  # the end, or no process can be forked
        forkserver.main(listener, ended, [])
    os._exit(0)


def fork_early() -> None:
    """Fork the server of multiprocessing from this process, so that loader processes inherit the imports.

    This must be called before any computation. Otherwise, the server is a new interpreter, which takes
    seconds to import the modules that loaders need.
    """
    global _imported
    _imported = frozenset(sys.modules)
    _set_server(*fork_server("loader server"))


def ensure(modules: Iterable[str]) -> None:
    """Start the server of multiprocessing, unless one that has imported all ``modules`` is running."""
    global _imported
    needed = set(modules)
    if _imported and not needed <= _imported:
        _imported = frozenset()
        os.close(_MULTIPROCESSING._forkserver_alive_fd)
        os.waitpid(_MULTIPROCESSING._forkserver_pid, 0)
        _set_server(None, None, None)
    multiprocessing.get_context("forkserver").set_forkserver_preload(sorted(needed))
    resource_tracker.ensure_running()  # must come first, because starting it unblocks the signals
    with stop_signals_blocked():
        forkserver.ensure_running()


def _set_server(address: str | None, alive: int | None, pid: int | None) -> None:
    _MULTIPROCESSING._forkserver_address = address
    _MULTIPROCESSING._forkserver_alive_fd = alive
    _MULTIPROCESSING._forkserver_pid = pid
