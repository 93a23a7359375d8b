"""A process that has imported PyTorch and computed nothing, from which ranks are forked: they start at once.

Importing PyTorch takes seconds in every rank, and again at every restart. The process is forked from the
launcher before that opens or computes anything, as forking is safe only where no thread has been started and
no GPU touched. Only the command ``rankless`` may do so; ranks of a launcher with another history (a notebook,
a script, a test) and ranks that need other libraries than it has loaded (``cpu_isa``, a GPU) are started as
new interpreters.

It is asked and answers over a pair of sockets that nobody else has.
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
from rankless.launch.requests import ASKS
from rankless.messages import Lines, line

# What every rank imports besides what the launcher has.
_PRELOADED = ("rankless.launch.worker", "rankless.launch.rank_job")
_PATIENCE = 300.0  # seconds that forking takes, and the imports before, from a cold network disk, too
_allowed = False
_running: ForkServer | None = None


class Fork(msgspec.Struct):
    """Asks the fork server for a rank.

    Attributes:
        arguments: the worker's.
        environment: all of its environment variables.
    """

    arguments: list[str]
    environment: dict[str, str]


class Forked(msgspec.Struct):
    """What the fork server reports of a rank: that it has started, or with a code that it has ended."""

    pid: int
    code: int | None = None


class ForkedProcess:
    """A process that the server has forked.

    Attributes:
        pid: the process, which leads a process group and a session.
        returncode: None while it lives; the negative number of the signal that killed it.
    """

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, None while it lives."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the exit code.

        Raises:
            subprocess.TimeoutExpired: after ``timeout`` seconds.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.code_of(self.pid, seconds)
        return self.returncode


class ForkServer:
    """The launcher's end.

    Args:
        connection: to the server's process.
        pid: that process.

    Attributes:
        pid: of the server's process.
        alive: whether it lives, as far as is known.
        code: its exit code when it has died; the negative number of the signal that killed it.
    """

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection, self.pid = connection, pid
        self._lines = Lines()
        self._codes: dict[int, int] = {}
        self.alive = True
        self.code: int | None = None

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str]) -> ForkedProcess:
        """Fork a rank.

        Args:
            arguments: the worker's; it is bound to the life of the server, not to that of the process named.
            environment: all of its environment variables.

        Returns:
            The rank; one that was killed where the server has died.
        """
        with contextlib.suppress(ConnectionError):
            self._connection.sendall(line(Fork(list(arguments), dict(environment))))
        while self.alive:
            messages = self._messages(_PATIENCE)
            for message in messages:
                if message.code is None:
                    return ForkedProcess(self, message.pid)
            if not messages and not self._lines.rest:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)  # it hangs
        return ForkedProcess(self, self.pid)

    def code_of(self, pid: int, seconds: float | None) -> int | None:
        """Wait for the end of a process; its exit code, None if it lives after ``seconds``.

        When the server has died its ranks have died with it.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while pid not in self._codes and self.alive:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            if not self._messages(left) and left == 0:
                break
        return self._codes.get(pid, None if self.alive else -signal.SIGKILL)

    def close(self) -> None:
        """End the server, which kills what is left of its ranks."""
        self._connection.close()
        if self.alive:
            self._reap()

    def _reap(self) -> None:
        self.alive = False
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)

    def _messages(self, seconds: float | None) -> list[Forked]:
        """What has come since, after waiting for it for at most ``seconds``; exit codes are noted."""
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
    """Allow :func:`start` to fork the server; call this only from the ``rankless`` command's own process."""
    global _allowed
    _allowed = sys.platform == "linux" and hasattr(os, "pidfd_open")


def start(task: str | None = None) -> None:
    """Fork the server from this process, which has computed nothing so far, if that is allowed.

    Args:
        task: the task of the ranks to come, whose page is imported before where it is a built-in one.
    """
    global _running, _allowed
    if not _allowed:
        return
    _allowed = False  # once
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an old kernel, or a sandbox
        return
    from rankless.tasks.custom import BUILT_IN

    if task in BUILT_IN:
        importlib.import_module(f"rankless.tasks.{task}")
    ours, theirs = socket.socketpair()
    launcher = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # In the server they stay blocked, and in its ranks until each listens: those requests are the launcher's.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKS)
    try:
        pid = fork()
    except OSError:  # no room for a process; the ranks will say so
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
        with contextlib.suppress(
            OSError
        ):  # no room for another process; then they are started without this one
            _serve(theirs, launcher)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def running() -> ForkServer | None:
    """The server that has been started and lives."""
    return _running if _running is not None and _running.alive else None


def _serve(connection: socket.socket, launcher: int) -> None:
    """Fork ranks until the launcher has gone."""
    die_with_parent(launcher)
    os.setsid()  # a terminal's Ctrl-C is the launcher's
    for number in ASKS:
        if callable(signal.getsignal(number)):  # the launcher's; what it ignores its ranks ignore
            signal.signal(number, signal.SIG_DFL)
    for module in _PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # no collection in a rank has to walk through what has been imported, or copies its pages
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
    """Fork a rank, which does not get the descriptors ``private``; it leads its group when this returns."""
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
    finally:  # what the end of an interpreter does
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _rank(request: Fork, server: int) -> int:
    """Be what ``python -P -m rankless.launch.worker`` would be."""
    os.environ.clear()
    os.environ.update(request.environment)
    if not sys.flags.safe_path:
        del sys.path[0]  # where the command lies, or where it was given: a stranger's folder, perhaps
        os.environ["PYTHONSAFEPATH"] = "1"  # for the processes that it starts
    from rankless.launch import worker

    job, _, *meeting = request.arguments
    sys.argv = [worker.__file__, job, str(server), *meeting]
    return worker.main()
