"""What a case may take: memory and time, both of this process; and what it may not do: see :class:`Watch`."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

MEMORY = 1 << 30
"""Bytes that a case may add to what the process has (private and writable, ``RLIMIT_DATA``)."""
PROCESSOR = 10.0
"""Seconds of the processor that a case may take."""
CLOCK = 30.0
"""Seconds until a case that does nothing counts as hanging."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_STARTING = frozenset({
    "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "subprocess.Popen",
    "pty.spawn", "webbrowser.open",
})  # fmt: skip
_DEVICES = ("/dev/null", "/dev/full", "/dev/zero", "/dev/shm/torch_", "/dev/shm/sem.")
_CHANGING = {"os.remove": 1, "os.rename": 2, "os.mkdir": 1, "os.rmdir": 1, "os.link": 2, "os.truncate": 1}
_CHANGING |= {"os.symlink": 2, "os.chmod": 1, "os.chown": 1, "os.utime": 1, "shutil.rmtree": 1}


class Hang(BaseException):
    """Too much time; no handler of the package's catches it."""


class Watch:
    """Notes every process that is started and every file that is changed outside some folders.

    Both are refused as the system refuses them, with a PermissionError: nothing of this machine's is touched.
    It is an audit hook, which the interpreter keeps for good: one for the process, awake during cases only.
    """

    def __init__(self) -> None:
        self.awake = False
        self.allowed: tuple[str, ...] = ()
        self.found: list[str] = []
        self.started: list[str] = []
        sys.addaudithook(self)

    @contextlib.contextmanager
    def over(self, *allowed: Path) -> Iterator[None]:
        """Note what is done while it lasts; changes in the folders ``allowed`` are fine."""
        self.found, self.started, self.allowed = [], [], tuple(f"{path.resolve()}/" for path in allowed)
        self.awake = True
        try:
            yield
        finally:
            self.awake = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.awake:
            return
        if event in _STARTING or (event == "import" and str(arguments[0]).partition(".")[0] == "evil"):
            self.started.append(f"{event} {arguments!r:.300}")
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            self._changed("open", arguments[0])
        elif event in _CHANGING:
            folder = arguments[-1] if isinstance(arguments[-1], int) and arguments[-1] > 2 else None
            for path in arguments[: _CHANGING[event]]:
                self._changed(event, path, folder)

    def _changed(self, event: str, path: Any, folder: int | None = None) -> None:
        if isinstance(path, int):
            return
        self.awake = False  # what is looked up here is ours
        try:
            name = os.fsdecode(path)
            if folder is not None:
                name = os.path.join(f"/proc/self/fd/{folder}", name)  # noqa: PTH118
            real = os.path.realpath(name) if event == "open" else _in_real_folder(name)
        except (OSError, ValueError, TypeError):
            return  # the call itself will fail
        finally:
            self.awake = True
        bytecode = (
            "/__pycache__/" in f"{real}/"
        )  # which the interpreter writes where it may, whatever it imports
        if not bytecode and not real.startswith(_DEVICES) and not f"{real}/".startswith(self.allowed):
            self.found.append(f"{event} {real!r:.300}")
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)


def _in_real_folder(name: str) -> str:
    """The path itself, which may be a link, in its real folder."""
    folder, last = os.path.split(name.rstrip("/"))
    return f"{os.path.realpath(folder or '.')}/{last}"


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """No more than :data:`MEMORY` bytes beyond what the process has now."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_in_use() + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def data_in_use() -> int:
    """What ``RLIMIT_DATA`` counts, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) * 1024


@contextlib.contextmanager
def little_time(processor: float = PROCESSOR, clock: float = CLOCK) -> Iterator[None]:
    """Raise :class:`Hang` in the main thread after so many seconds of the processor's or the clock's."""

    def too_long(number: int, _: FrameType | None) -> None:
        if number == signal.SIGPROF:
            raise Hang(f"more than {processor:g} seconds of the processor")
        raise Hang(f"more than {clock:g} seconds")

    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(clock, signal.pthread_kill, (main, signal.SIGUSR2))
    timer.daemon = True
    before = {number: signal.signal(number, too_long) for number in (signal.SIGPROF, signal.SIGUSR2)}
    signal.setitimer(signal.ITIMER_PROF, processor)
    timer.start()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
