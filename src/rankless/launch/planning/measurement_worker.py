"""Measure on request in separate processes, which read requests and write answers as lines of JSON."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Self

import msgspec

from rankless.errors import OneValueError, ShortageError, UserError
from rankless.hardware.memory import peak
from rankless.hardware.processes import die_with_parent, name_process
from rankless.hardware.shortages import shortage
from rankless.messages import line

if TYPE_CHECKING:
    import torch

_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE")
PACKAGE = "rankless.launch.planning"
_POLL = 0.05  # seconds
_ERRORS = {error.__name__: error for error in (OneValueError, ShortageError)}


class MeasurementProcess:
    """A context manager for a process that measures on request; the process ends with the context.

    Args:
        module: the module of this package to run, which calls :func:`serve_requests`.
        what: the name of the measurement in error messages.
        log: the file for standard error.
        instead: advice on an alternative to the measurement, for error messages.
        variables: additional environment variables.
        arguments: command-line arguments of the module.
    """

    def __init__(
        self,
        module: str,
        what: str,
        log: IO[bytes],
        *,
        instead: str = "",
        variables: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.what, self.log, self.instead = what, log, instead
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{PACKAGE}.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**environment(), **(variables or {})},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, value: Any) -> None:
        """Send a request (any JSON value)."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.write(line(value))
                self._process.stdin.flush()
            except BrokenPipeError:
                self.answer()  # raises the error of the process

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to the last request; raise the error that the process reports."""
        text = self._process.stdout.readline() if self._process.stdout is not None else b""
        if not text:
            raise died(self.what, self._process.wait(), self.log, self.instead)
        answer = msgspec.json.decode(text, type=dict[str, Any])
        if problems := answer.get("problems"):
            raise _ERRORS.get(answer["error"], UserError)(problems)
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def environment() -> dict[str, str]:
    """Return this process's environment variables without those that a launcher sets for ranks."""
    return {name: value for name, value in os.environ.items() if name not in _OF_A_LAUNCHER}


def rank_variables(rank: int, ranks: int) -> dict[str, str]:
    """Return the environment variables of a rank on a single machine."""
    own, every = str(rank), str(ranks)
    return {"RANK": own, "LOCAL_RANK": own, "WORLD_SIZE": every, "LOCAL_WORLD_SIZE": every}


def died(what: str, code: int, log: IO[bytes], instead: str = "") -> UserError:
    """Return the error for a process that exited early, with the last line of its log."""
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    end = f"; {instead}" if instead else ""
    return UserError(
        f"{what} could not be measured: the process exited with code {code} "
        f"({lines[-1] if lines else 'no output'}){end}"
    )


@contextmanager
def guarded(pid: int, limit: int) -> Iterator[list[int]]:
    """Kill a process if it uses more than ``limit`` bytes, and append its usage to the yielded list.

    Without this check, the kernel might kill another process. A ``limit`` of 0 disables the check.
    """
    over: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while limit and not ended.wait(_POLL):
            if (taken := peak(pid)) > limit:
                over.append(taken)
                os.kill(pid, signal.SIGKILL)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield over
    finally:
        ended.set()
        watcher.join()


def quick(seconds: Iterable[float]) -> float:
    """Return the lower quartile of durations, which is less affected by other work than the median."""
    ordered = sorted(seconds)
    return ordered[(len(ordered) - 1) // 4]


def memory_taken(device: torch.device) -> int:
    """Return the peak memory of this process in bytes (GPU memory if ``device`` is a GPU)."""
    import torch

    return torch.cuda.max_memory_reserved() if device.type == "cuda" else peak()


def synchronizer(device: torch.device) -> Callable[[], None]:
    """Return a function that waits until the device has finished its work."""
    import torch

    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def serve_requests(name: str, body: Callable[[Callable[[], Any], Callable[[Any], None]], None]) -> int:
    """Run ``body`` in a process started by :class:`MeasurementProcess`, and return the exit code.

    ``body`` is called with a function that returns the next request (or raises EOFError if there is none) and
    a function that sends an answer.
    """
    die_with_parent(os.getppid())
    name_process(name)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps the output of libraries out of the answers

    def question() -> Any:
        if text := sys.stdin.readline():
            return msgspec.json.decode(text)
        raise EOFError

    def answer(value: Any) -> None:
        answers.write(line(value))
        answers.flush()

    try:
        body(question, answer)
    except EOFError:
        pass
    except Exception as error:
        known = error if isinstance(error, UserError) else shortage(error)
        if known is None:
            raise
        answer({"problems": list(known.problems), "error": type(known).__name__})
    return 0
