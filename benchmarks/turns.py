"""Processes or functions that take turns, so that two of them are measured under the same load.

A contender is one process, or several that train together. Each lives as long as the benchmark needs it, and
runs so many steps of its loop whenever it is told to.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple

Body = Callable[..., None]


class Seconds(NamedTuple):
    """How long a step took.

    Attributes:
        wall: on the clock.
        cpu: that the process computed; other load on the machine hardly changes it.
    """

    wall: float
    cpu: float


class Contender:
    """A measured program; a context manager that ends its processes.

    Args:
        body: ``body(turns, *arguments)`` trains until ``turns``, called after every step, ends it.
        arguments: they pickle.
        size: how many processes; they find each other through the variables that torchrun sets.
    """

    def __init__(self, body: Body, *arguments: Any, size: int = 1) -> None:
        context = multiprocessing.get_context("spawn")
        port = _free_port()
        self.connections: list[Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_live, args=(theirs, rank, size, port, body, arguments))
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)
        try:
            self._answers()  # to the first step, which only warms up
        except BaseException:
            self.close()
            raise

    def steps(self, count: int) -> list[Seconds]:
        """Run this many steps and return how long each took in the slowest process."""
        self._tell("steps", count)
        return [max(each) for each in zip(*self._answers(), strict=True)]

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call ``function(step, subject, *arguments)`` in every process between two steps.

        ``subject`` is the object that its loop shows to observers.
        """
        self._tell("ask", function, arguments)
        return self._answers()

    def close(self) -> None:
        """End the processes."""
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()

    def __enter__(self) -> Contender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, *command: Any) -> None:
        for connection in self.connections:
            connection.send(command)

    def _answers(self) -> list[Any]:
        answers = []
        for connection in self.connections:
            try:
                fault, answer = connection.recv()
            except EOFError:
                fault, answer = "a process of the benchmark died", None
            if fault:
                raise RuntimeError(fault)
            answers.append(answer)
        return answers


class Finished(BaseException):
    """Ends a loop from inside its observer."""


class Turns:
    """The observer that a loop calls after every step: it measures the step, and waits between turns.

    Args:
        connection: to the parent.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.left = 1
        self.seconds: list[Any] = []
        self.since = _now()

    def __call__(self, step: int, subject: Any, scores: Any) -> None:
        _wait_for_device()
        now = _now()
        self.seconds.append(Seconds(now.wall - self.since.wall, now.cpu - self.since.cpu))
        self.left -= 1
        if not self.left:
            self.pause(step, subject)
        self.since = _now()

    def pause(self, step: int, subject: Any) -> None:
        """Send the measurements, and return when it is this contender's turn again."""
        self.connection.send((None, self.seconds))
        self.seconds = []
        while True:
            try:
                verb, *rest = self.connection.recv()
            except EOFError:
                raise Finished from None
            if verb == "steps":
                (self.left,) = rest
                return
            function, arguments = rest
            self.connection.send((None, function(step, subject, *arguments)))


def _now() -> Seconds:
    return Seconds(time.perf_counter(), time.process_time())


def _wait_for_device() -> None:
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _live(
    connection: Connection, rank: int, size: int, port: int, body: Body, arguments: Sequence[Any]
) -> None:
    """Run a contender's process."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # progress lines
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    turns = Turns(connection)
    try:
        body(turns, *arguments)
    except Finished:
        pass
    except Exception:
        try:
            connection.send((traceback.format_exc(), None))
        except OSError:
            traceback.print_exc()
    finally:
        connection.close()
    os._exit(0)  # native threads have nothing more to add


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def rounds(contenders: Sequence[Contender], count: int, steps: int = 1) -> list[list[Seconds]]:
    """Return the times per step of every contender, one entry per round: the mean of the round's steps."""

    def mean(contender: Contender) -> Seconds:
        return Seconds(*map(statistics.fmean, zip(*contender.steps(steps), strict=True)))

    return _in_turns([partial(mean, one) for one in contenders], count)


def timed(works: Sequence[Callable[[], object]], count: int) -> list[list[Seconds]]:
    """Return how long every function takes in this process, one entry per round."""

    def seconds(work: Callable[[], object]) -> Seconds:
        began = _now()
        work()
        now = _now()
        return Seconds(now.wall - began.wall, now.cpu - began.cpu)

    return _in_turns([partial(seconds, one) for one in works], count)


def _in_turns(measures: Sequence[Callable[[], Seconds]], count: int) -> list[list[Seconds]]:
    """Measure A B, then B A, and so on; the first round only warms up."""
    found: list[list[Seconds]] = [[] for _ in measures]
    for number in range(count + 1):
        places = range(len(measures))
        for place in places if number % 2 else reversed(places):
            seconds = measures[place]()
            if number:
                found[place].append(seconds)
    return found


class Speed(NamedTuple):
    """The speed of one contender relative to another: 2 is twice as fast.

    Attributes:
        best: of the best times on the clock.
        median: over the rounds, each with its own pair of times.
        cpu: of the median CPU times.
    """

    best: float
    median: float
    cpu: float


def speed(one: Sequence[Seconds], other: Sequence[Seconds]) -> Speed:
    """Return the speed of one relative to the other, over the same rounds."""
    each = [theirs.wall / mine.wall for mine, theirs in zip(one, other, strict=True)]
    best = min(theirs.wall for theirs in other) / min(mine.wall for mine in one)
    cpu = statistics.median(t.cpu for t in other) / statistics.median(m.cpu for m in one)
    return Speed(best, statistics.median(each), cpu)
