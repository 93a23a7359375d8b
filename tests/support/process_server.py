"""Interpreters that have PyTorch at once: forked from one that has imported it and computed nothing.

Importing PyTorch takes a processor's seconds, which is most of what a short run takes. What is forked here is
like a new interpreter in what a run can see: its own session, variables, folder, path, arguments and files.
Which variables libraries read when they are loaded was decided before, so a process that is given others,
or a limit of its own, has to be started the long way.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rankless.hardware.forking import ForkedProcess, ForkServer, serve

TAG, NOBODY = "FAULT_TAG", "-" * 32  # a variable by whose value processes are found in /proc
STARTED = "process_server.start"  # an audit event
SHARED = "RANKLESS_TEST_SERVER"  # a variable: where the sockets of servers are that pytest's workers share
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
_tag: Any = None  # where the kernel shows the variable; setting variables makes copies elsewhere


class ProcessServer:
    """Started when first needed, and ended with the processes that use it.

    It imports ``modules``, as far as they are installed, beyond PRELOADED or what its parent has.
    """

    alive, code, pid = True, None, os.getpid()  # as of the server that a launcher has forked

    def __init__(self, name: str, *modules: str, parent: ProcessServer | None = None) -> None:
        self._name, self._modules = name, modules
        self._parent = parent
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
    ) -> ForkedProcess:
        """Do what ``python WORDS`` does; ``given`` is the standard input, which is otherwise empty."""
        sys.audit(STARTED)
        with Path(os.devnull).open("rb") as nothing:
            streams = [(given or nothing).fileno(), output.fileno(), (errors or output).fileno()]
            return self._server.fork(_run, list(words), dict(environment), str(cwd), streams=streams)

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
                process.send_signal(signal.SIGKILL)
                raise
            output.seek(0), errors.seek(0)
            return subprocess.CompletedProcess(words, code, output.read(), errors.read())

    def fork(self, function: Callable[..., int], *arguments: Any) -> ForkedProcess:
        """Call a function of a run that a test starts in its own process, which may not fork it itself."""
        sys.audit(STARTED)
        with Path(os.devnull).open("rb") as nothing:
            streams = (nothing.fileno(), 1, 2)
            return self._server.fork(_call, str(Path.cwd()), function, *arguments, streams=streams)

    @functools.cached_property
    def _server(self) -> ForkServer:
        """A connection to the server, which the first of pytest's workers that asks starts."""
        place = Path(os.environ.get(SHARED) or f"{_own_folder().name}/server").with_suffix(f".{self._name}")
        users = place.with_suffix(f".{self._name}.users")
        with place.with_suffix(f".{self._name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                alive = os.open(users, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # nobody has started it, or all have left it
                for path in (place, users):
                    path.unlink(missing_ok=True)
                os.mkfifo(users)
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(str(place))
                    listener.listen()
                    server = self._started(listener, users)
                alive = os.open(users, os.O_WRONLY)
                atexit.register(_end, alive, server)
        return ForkServer(str(place), alive)

    def _started(self, listener: socket.socket, users: Path) -> ForkedProcess | subprocess.Popen[bytes]:
        words = [__file__, str(users), *self._modules]
        environment = {**self._environment, TAG: NOBODY}
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


def _end(alive: int, server: ForkedProcess | subprocess.Popen[bytes]) -> None:
    """Wait until the other workers have left the server, too."""
    os.close(alive)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(60)


SERVER = ProcessServer("commands")
# Of ranks that run a test's own functions, whose modules import these, which takes seconds too.
RANKS = ProcessServer(
    "ranks",
    "PIL.Image",
    "hypothesis",
    "timm",
    "torchvision.transforms.v2",
    "transformers.models.d_fine.modeling_d_fine",
    "transformers.models.rt_detr.modeling_rt_detr",
    parent=SERVER,
)


def main(users: str, *modules: str) -> None:
    """Import modules, and fork on request until nobody can ask any more."""
    global _tag
    listener, ended = os.dup(0), os.open(users, os.O_RDONLY)
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    _tag = _tag or libc.getenv(TAG.encode())
    for module in PRELOADED:
        importlib.import_module(module)
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    workers = importlib.import_module("rankless.engine.loader_count")
    workers.usable_cores = lambda: 1  # so that tests alone decide about loader processes
    serve(listener, ended)


def _run(words: Sequence[str], environment: Mapping[str, str], cwd: str) -> int:
    """Be what ``python WORDS`` is in this process, which the server has forked."""
    ctypes.memmove(_tag, environment.get(TAG, NOBODY).encode(), len(NOBODY))
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[1:1] = [  # what the server's own variable named stands there already
        path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path
    ]
    if words[0] == "-m":
        sys.argv, sys.path[0] = list(words[1:]), cwd
        return _call(cwd, runpy.run_module, words[1], None, "__main__", True)
    sys.argv, sys.path[0] = list(words), str(Path(words[0]).parent)
    return _call(cwd, runpy.run_path, words[0], None, "__main__")


def _call(cwd: str, function: Callable[..., Any], *arguments: Any) -> int:
    """Call a function that returns an exit code, or the variables of a module."""
    # The server's own remember whether these could be sought in.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # this may have been started while some were blocked
    os.chdir(cwd)
    code = function(*arguments)
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    # What is forked looks functions up in the module of this name, which it finds without the folder.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.process_server import main as serve_tests

    del sys.path[0]
    serve_tests(*sys.argv[1:])
