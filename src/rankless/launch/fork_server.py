"""The fork server: a process that has already imported PyTorch, so ranks forked from it start immediately.

Importing PyTorch takes several seconds in every rank and at every restart. The server is forked before the
launcher opens or computes anything, because forking is safe only before threads or GPUs are used. Only
processes that run nothing but Rankless may start a server. Ranks started from a notebook, a script or a test
run in new interpreters, and so do ranks that cannot use the loaded libraries because of ``cpu_isa`` or a GPU.

The launcher and the server communicate over a private socket pair.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rankless.hardware.processes import die_with_parent, fork
from rankless.launch.requests import STOP_SIGNALS
from rankless.messages import Lines, line
from rankless.task_kinds import BUILT_IN, kind_of

# Modules that every rank imports in addition to those that the launcher imports.
_PRELOADED = ("rankless.launch.worker", "rankless.launch.rank_job")
_PATIENCE = 300.0  # seconds for the imports and a fork, which may read from a slow network disk
_allowed = False
_running: ForkServer | None = None


class Fork(msgspec.Struct):
    """A request to fork a rank with the worker's arguments and its complete environment."""

    arguments: list[str]
    environment: dict[str, str]


class Forked(msgspec.Struct):
    """The server's report that a rank has started or, with a ``code``, that it has exited."""

    pid: int
    code: int | None = None


class ForkedProcess:
    """A rank's process, which is the leader of a process group and a session."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None

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
        if self.returncode is None:
            self.returncode = self._server.code_of(self.pid, seconds)
        return self.returncode


class ForkServer:
    """The launcher's connection to the server."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection, self.pid = connection, pid
        self._lines = Lines()
        self._codes: dict[int, int] = {}
        self.alive = True
        self.code: int | None = None
        self.cause = ""  # why the launcher killed the server, as in "did not answer for 300 s and was killed"

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str]) -> ForkedProcess:
        """Fork a rank with the worker's arguments and its complete environment.

        The rank dies with the server, not with the launcher that is named in ``arguments``. If the server is
        dead, the returned process counts as killed.
        """
        with contextlib.suppress(ConnectionError):
            self._connection.sendall(line(Fork(list(arguments), dict(environment))))
        while self.alive:
            messages = self._messages(_PATIENCE)
            for message in messages:
                if message.code is None:
                    return ForkedProcess(self, message.pid)
            if not messages and not self._lines.rest and self.alive:
                self.cause = f"did not answer for {_PATIENCE:g} s and was killed"
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)  # the server hangs
        return ForkedProcess(self, self.pid)

    def code_of(self, pid: int, seconds: float | None) -> int | None:
        """Wait up to ``seconds`` for a process and return its exit code, or None if it is still running.

        Ranks die with the server, so if the server is dead, ranks without an exit code count as killed.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while pid not in self._codes and self.alive:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            if not self._messages(left) and left == 0:
                break
        return self._codes.get(pid, None if self.alive else -signal.SIGKILL)

    def close(self) -> None:
        self._connection.close()
        if self.alive:
            self._reap()

    def _reap(self) -> None:
        self.alive = False
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)

    def _messages(self, seconds: float | None) -> list[Forked]:
        """Return the messages that arrive within ``seconds``, and store the exit codes that they report."""
        ready, _, _ = select.select([self._connection], [], [], seconds)
        if not ready:
            return []
        try:
            data = self._connection.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self._reap()
        messages = [msgspec.json.decode(text, type=Forked) for text in self._lines.feed(data)]
        self._codes.update((message.pid, message.code) for message in messages if message.code is not None)
        return messages


def allow() -> None:
    """Allow :func:`start` to fork the server; only processes that run nothing but Rankless may call this."""
    global _allowed
    _allowed = sys.platform == "linux" and hasattr(os, "pidfd_open")


def start(task: str | None = None) -> None:
    """Fork the server if that is allowed; this process must not have computed anything yet.

    A built-in ``task`` is imported first, so that the ranks do not have to import it.
    """
    global _running, _allowed
    if not _allowed:
        return
    _allowed = False  # fork the server only once
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an old kernel, or a sandbox
        return
    if task in BUILT_IN:
        kind_of(task).open.load()
    ours, theirs = socket.socketpair()
    launcher = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # The signals are meant for the launcher: they stay blocked in the server, and in each rank until it
    # listens for them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        pid = fork()
    except OSError:  # no process can be started, which the start of the ranks will report
        pid = -1
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        if pid < 0:
            return
        _running = ForkServer(ours, pid)
        atexit.register(_running.close)
        return
    try:
        ours.close()
        with contextlib.suppress(OSError):  # no process can be started; ranks then start without the server
            _serve(theirs, launcher)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def running() -> ForkServer | None:
    """Return the server, or None if it is not running."""
    return _running if _running is not None and _running.alive else None


def _serve(connection: socket.socket, launcher: int) -> None:
    die_with_parent(launcher)
    os.setsid()  # only the launcher receives Ctrl-C from the terminal
    for number in STOP_SIGNALS:
        if callable(signal.getsignal(number)):  # a handler of the launcher; ignored signals stay ignored
            signal.signal(number, signal.SIG_DFL)
    for module in _PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # garbage collection in a rank then skips the imports and copies none of their pages
    requests = connection.makefile("rb")
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not connection:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _, status = os.waitpid(key.data, 0)
                    message = Forked(key.data, os.waitstatus_to_exitcode(status))
                elif text := requests.readline():
                    pid = _fork(
                        msgspec.json.decode(text, type=Fork),
                        [selector.fileno(), *(key.fd for key in selector.get_map().values())],
                    )
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
                    message = Forked(pid)
                else:
                    return
                connection.sendall(line(message))


def _fork(request: Fork, private: Sequence[int]) -> int:
    """Fork a rank and return its process ID; the rank closes the ``private`` descriptors."""
    server = os.getpid()
    ready, leads = os.pipe()
    pid = fork()
    if pid:
        os.close(leads)
        os.read(ready, 1)
        os.close(ready)
        return pid
    code: Any = 1
    try:
        os.setsid()
        for descriptor in (*private, ready, leads):
            os.close(descriptor)
        code = _rank(request, server)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:  # as an interpreter does at its end
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _rank(request: Fork, server: int) -> int:
    """Run the worker in the same way as ``python -P -m rankless.launch.worker``."""
    os.environ.clear()
    os.environ.update(request.environment)
    if not sys.flags.safe_path:
        del sys.path[0]  # files in the command's folder or the current one must not be imported as libraries
        os.environ["PYTHONSAFEPATH"] = "1"  # for child processes
    from rankless.launch import worker

    job, _, *meeting = request.arguments
    sys.argv = [worker.__file__, job, str(server), *meeting]
    return worker.main()
