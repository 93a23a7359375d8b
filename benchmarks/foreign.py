"""Contenders that are scripts under a Python of their own, with the libraries of another program.

A script says ``ready`` on its output, or ``missing: …``; for every number n on a line of its input it does n
steps and answers with a line. Between its turns all its processes are stopped, so that no loader works ahead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from turns import Seconds

# The option that names the peers' interpreters, to be read by python_of.
PYTHON: dict[str, Any] = {
    "metavar": "[NAME=]PATH",
    "action": "append",
    "default": os.environ.get("PEERS_PYTHON", "").split(),
    "help": "the Python of one peer, or of all that have none of their own; may be repeated "
    "(or PEERS_PYTHON, divided by spaces)",
}


class Foreign:
    """A script and its processes; a context manager that ends them.

    Args:
        name: what it is called where it is left out.
        python: the interpreter.
        script: file and arguments.
        variables: of its environment; everything else is inherited but the number of threads.

    Attributes:
        problem: why it takes no turns: a library is missing, or its last words; empty where it is ready.
    """

    def __init__(self, name: str, python: str, script: Sequence[str], variables: Mapping[str, str]) -> None:
        inherited = {key: text for key, text in os.environ.items() if not key.endswith("_NUM_THREADS")}
        if python != sys.executable:
            inherited.pop("PYTHONPATH", None)
        self.name = name
        self.words = os.memfd_create(name)  # of its errors, of which the last line is shown
        self.process = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                'exec "$0" "$@"',
                python,
                *script,
            ],  # which says so where there is no such Python
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.words,
            text=True,
            env={**inherited, **variables},
        )
        answer = self._answer()
        self.problem = "" if answer == "ready" else answer or self._last_words()
        self._signal(signal.SIGSTOP)

    def steps(self, count: int) -> list[Seconds]:
        """Run this many steps and return the mean step, with the CPU time of all processes.

        Raises:
            RuntimeError: it has ended.
        """
        assert self.process.stdin is not None
        cpu, wall = self._cpu(), time.perf_counter()
        self._signal(signal.SIGCONT)
        print(count, file=self.process.stdin, flush=True)
        answer = self._answer()
        wall = time.perf_counter() - wall
        self._signal(signal.SIGSTOP)
        if not answer:
            raise RuntimeError(f"{self.name} has ended: {self._last_words()}")
        return [Seconds(wall / count, (self._cpu() - cpu) / count)]

    def close(self) -> None:
        """End its processes."""
        everybody = list(family(self.process.pid))  # children of one that has ended are nobody's
        self._signal(signal.SIGCONT)
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        _send(signal.SIGKILL, everybody)
        self.process.wait()
        os.close(self.words)

    def __enter__(self) -> Foreign:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def _last_words(self) -> str:
        size = os.fstat(self.words).st_size
        lines = os.pread(self.words, 4096, max(0, size - 4096)).decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "it ended without a word")

    def _signal(self, number: signal.Signals) -> None:
        _send(number, family(self.process.pid))

    def _cpu(self) -> float:
        """Return the CPU seconds of its living processes, including threads that have ended."""
        total = 0.0
        for one in family(self.process.pid):
            with suppress(OSError):
                total += time.clock_gettime((~one << 3) | 2)  # CPUCLOCK_SCHED in Linux' posix-timers.h
        return total


def family(process: int) -> Iterator[int]:
    """Return a process and all its descendants, on Linux."""
    yield process
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                yield from family(int(child))


def _send(number: signal.Signals, processes: Iterable[int]) -> None:
    for one in processes:
        with suppress(ProcessLookupError):
            os.kill(one, number)


def python_of(name: str, given: Sequence[str]) -> str:
    """Return the interpreter of a peer: its own, the common one, or this one."""
    named = dict(one.rpartition("=")[::2] for one in given)
    return named.get(name) or named.get("") or sys.executable
