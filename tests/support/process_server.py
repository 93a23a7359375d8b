"""Interpreters that have PyTorch at once: forked from one that has imported it and computed nothing.

Importing PyTorch takes a processor's seconds, which is most of what a short run takes. What is forked here is
like a new interpreter in what a run can see: its own session, variables, folder, path, arguments and files.
Which variables libraries read when they are loaded was decided before, so a process that is given others,
or a limit of its own, has to be started the long way.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

TAG, NOBODY = "FAULT_TAG", "-" * 32  # a variable by whose value processes are found in /proc
STARTED = "process_server.start"  # an audit event
SHARED = "RANKLESS_TEST_SERVER"  # a variable: where the sockets of servers are that pytest's workers share
AVAILABLE = sys.platform == "linux" and hasattr(os, "pidfd_open")
# What commands and ranks import; no more, as they must not depend on what only tests have imported. The task
# of classification brings torchvision, which takes as long to import as PyTorch.
PRELOADED = (
    "rankless.cli",
    "rankless.launch.local",
    "rankless.launch.worker",
    "rankless.launch.rank_job",
    "rankless.tasks.classify",
    "rankless.tasks.detect",
    "rich.live",
    "rich.progress",
    "rich.table",
)


class Forked:
    """A process of the server, used like a :class:`subprocess.Popen`."""

    def __init__(self, status: int) -> None:
        self._status = status
        self.returncode: int | None = None
        self.pid = self._number() or 0

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            number = self._number()
            self.returncode = -signal.SIGKILL if number is None else number
            os.close(self._status)
        return self.returncode

    def _number(self) -> int | None:
        """What the server says next about this process; None when it is gone."""
        return array.array("i", said)[0] if (said := os.read(self._status, 4)) else None


class ProcessServer:
    """Started when first needed, and ended with the process that started it.

    It imports ``modules``, as far as they are installed, beyond PRELOADED or what its parent has.
    """

    def __init__(self, name: str, *modules: str, parent: ProcessServer | None = None) -> None:
        self._name, self._modules = name, modules
        self._parent = parent
        self._connection: socket.socket | None = None
        self._environment = dict(os.environ)  # as it was before any test changed it

    def start(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: Path | str,
        output: IO[Any],
        errors: IO[Any] | None = None,
        given: IO[Any] | socket.socket | None = None,
    ) -> Forked | subprocess.Popen[bytes]:
        """Do what ``python WORDS`` does; ``given`` is the standard input, which is otherwise empty."""
        if not AVAILABLE:
            return subprocess.Popen(
                [sys.executable, *words],
                env=environment,
                cwd=cwd,
                stdin=given or subprocess.DEVNULL,
                stdout=output,
                stderr=errors or output,
            )
        sys.audit(STARTED)
        connection = self._connection = self._connection or self._started()
        status, writes = os.pipe()
        request = {"words": list(words), "environment": dict(environment), "cwd": str(cwd)}
        with (
            tempfile.TemporaryFile() as message,  # longer, maybe, than a message between sockets may be
            Path(os.devnull).open("rb") as nothing,
        ):
            message.write(json.dumps(request).encode())
            message.seek(0)
            streams = [(given or nothing).fileno(), output.fileno(), (errors or output).fileno()]
            socket.send_fds(connection, [b"."], [*streams, writes, message.fileno()])
        os.close(writes)
        return Forked(status)

    def run(
        self,
        *words: str,
        cwd: Path | str,
        seconds: float = 120,
        given: IO[Any] | None = None,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Do what ``python WORDS`` does with more variables, and wait for its end."""
        variables = {**os.environ, "RANKLESS_CPU": "1", **environment}
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            process = self.start(
                words, environment=variables, cwd=cwd, output=output, errors=errors, given=given
            )
            try:
                code = process.wait(seconds)
            except BaseException:
                process.kill()
                raise
            output.seek(0), errors.seek(0)
            return subprocess.CompletedProcess(words, code, output.read(), errors.read())

    def _started(self) -> socket.socket:
        """A connection to the server, which the first of pytest's workers that asks starts."""
        place = Path(os.environ.get(SHARED) or f"{_own_folder().name}/server").with_suffix(f".{self._name}")
        environment = {**self._environment, TAG: NOBODY}
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with place.with_suffix(f".{self._name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                ours.connect(str(place))
            except OSError:  # nobody has started it, or all have left it
                place.unlink(missing_ok=True)
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                    listener.bind(str(place))
                    listener.listen()
                    atexit.register(_end, ours, self._server(listener, environment))
                ours.connect(str(place))
        return ours

    def _server(
        self, listener: socket.socket, environment: Mapping[str, str]
    ) -> Forked | subprocess.Popen[bytes]:
        words = [__file__, *self._modules]
        if self._parent is None:
            return subprocess.Popen(
                [sys.executable, *words], env=environment, stdin=listener, start_new_session=True
            )
        with os.fdopen(os.dup(2), "wb") as output:
            return self._parent.start(
                words, environment=environment, cwd=Path.cwd(), output=output, given=listener
            )


@functools.cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    """Of a process that shares no server.

    It is not made where this is imported: what a folder registers for the end of the server would keep what
    multiprocessing registers later waiting for loader processes.
    """
    return tempfile.TemporaryDirectory(prefix="rankless-server-")


def _end(connection: socket.socket, server: Forked | subprocess.Popen[bytes]) -> None:
    """Wait until the other workers have left the server, too."""
    connection.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(60)


SERVER = ProcessServer("commands")
# Of ranks that run a test's own functions, whose modules import these, which takes seconds too.
RANKS = ProcessServer(
    "ranks",
    "PIL.Image",
    "hypothesis",
    "sklearn.datasets",
    "timm",
    "torchvision.transforms.v2",
    "transformers.models.d_fine.modeling_d_fine",
    "transformers.models.rt_detr.modeling_rt_detr",
    parent=SERVER,
)


class RankServer:
    """Forks the ranks of a run that a test starts in its own process, which may not fork them itself.

    It is used like a :class:`rankless.launch.fork_server.ForkServer`.
    """

    alive, code, pid = True, None, os.getpid()

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Forked:
        words = [str(Path(__file__).with_name("forked_rank.py")), *arguments]
        with os.fdopen(os.dup(1), "wb") as output:
            return SERVER.start(words, environment=environment, cwd=Path.cwd(), output=output)


def _serve(listener: socket.socket, modules: Sequence[str]) -> None:
    """Fork until nobody can ask any more."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    tag = libc.getenv(TAG.encode())  # where the kernel shows it; setting variables makes copies elsewhere
    for module in PRELOADED:
        importlib.import_module(module)
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    workers = importlib.import_module("rankless.engine.loader_count")
    workers.usable_cores = lambda: 1  # so that tests alone decide about loader processes
    gc.collect()
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        asking = 0
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    selector.register(listener.accept()[0], selectors.EVENT_READ)
                    asking += 1
                    continue
                connection = key.fileobj
                if not isinstance(connection, socket.socket):
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    pid, writes = key.data
                    _, status = os.waitpid(pid, 0)
                    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                        os.write(writes, array.array("i", [os.waitstatus_to_exitcode(status)]).tobytes())
                    os.close(writes)
                    continue
                _, descriptors, _, _ = socket.recv_fds(connection, 1, 5)
                if not descriptors:
                    selector.unregister(connection)
                    connection.close()
                    asking -= 1
                    if not asking:
                        return
                    continue
                *streams, writes, message = descriptors
                with os.fdopen(message, encoding="utf-8") as text:
                    request = json.load(text)
                ctypes.memmove(tag, request["environment"].get(TAG, NOBODY).encode(), len(NOBODY))
                pid = os.fork()
                if not pid:
                    _become(request, streams)
                ctypes.memmove(tag, NOBODY.encode(), len(NOBODY))
                for stream in streams:
                    os.close(stream)
                os.write(writes, array.array("i", [pid]).tobytes())
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, writes))


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Be a new interpreter, and end as one."""
    code: Any = 1
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        # The server's own remember whether these could be sought in.
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(request["environment"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # this may have been started while some were blocked
        os.chdir(request["cwd"])
        sys.path[1:1] = [  # what the server's own variable named stands there already
            path
            for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)
            if path and path not in sys.path
        ]
        code = _run(request["words"], request["cwd"])
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:  # what the end of an interpreter does
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _run(words: Sequence[str], cwd: str) -> int:
    if words[0] == "-m":
        sys.argv, sys.path[0] = list(words[1:]), cwd
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = list(words), str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    _serve(socket.socket(fileno=os.dup(0)), sys.argv[1:])
    os._exit(0)
