"""Torch's elastic agent for the ranks of one machine, with the behavior that a person expects.

It restarts the ranks when one dies, but not when they ended on purpose: an error of the user's would only
come again. When it is asked to stop it lets the ranks finish their step and save.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing import api as multiprocessing

from rankless.errors import UserError
from rankless.launch.fork_server import Forked, ForkServer
from rankless.launch.hanging import FORK_SERVER, Hanging
from rankless.launch.job import LOST_PEER, leave_cause, read_pulse
from rankless.launch.requests import Requests, undisturbed
from rankless.world.rendezvous import OneMachine

GRACE = 600.0  # seconds for the step under way and its checkpoint; a second signal ends it at once
NOTICE = 3.0  # seconds in which ranks that miss another one end by themselves
# -P: where the command is given may be a stranger's folder, whose files must not pass for libraries.
_INTERPRETER = ("-P", "-m", "rankless.launch.worker")
HOPELESS = 3  # restarts without a step forward
UNKILLABLE = 30.0  # seconds that a killed process may take to end


def where_from(step: int | None) -> str:
    """From where ranks are started again after the last saved step, 0 without one, None if nobody knows."""
    if step is None:
        return "the newest checkpoint, if there is one,"
    return "the newest checkpoint" if step else "the beginning, as nothing was saved yet"


@dataclass(frozen=True)
class Hooks:
    """What a launcher knows about its job and the agent does not.

    Attributes:
        ended: whether some rank has left a note that it ended on purpose.
        progress: a number that grows as the job gets on.
        saving: the id of the process that saves now, or None.
        cause: why a rank died, as a sentence, where it could report it before; asked once for each death.
        died: called for every death that is not caused by another's: the rank (None for the process that
            forks them), how its process ended (the negative number of the signal that killed it), and that as
            a sentence. No rank is alive then.
        report: called with a sentence about what happened.
        abandoned: whether the ranks of other machines have gone, so that these cannot go on either.
        watching: called again and again while the ranks are watched.
    """

    ended: Callable[[], bool]
    progress: Callable[[], int]
    saving: Callable[[], int | None]
    cause: Callable[[int], str | None]
    died: Callable[[int | None, int, str], None]
    report: Callable[[str], None]
    abandoned: Callable[[], bool] = lambda: False
    watching: Callable[[], None] = lambda: None


class Agent(LocalElasticAgent):
    """Supervises the ranks.

    Args:
        spec: what to run; the file at which the ranks meet is added to its arguments.
        rendezvous: the one of ``spec``; it knows the ranks' numbers.
        requests: the signals that this process gets.
        grace: seconds for the ranks to end when they are asked to.
        hooks: what the launcher knows.
        job: the file that the ranks read.
        server: forks the ranks, as long as it lives; without one they are new interpreters.
        restarts: whether the ranks are started again when one has died; otherwise the caller decides.

    Attributes:
        blamed: the rank whose death made the agent give up, None where it did not.
        codes: how the ranks ended that failed by themselves, by their numbers.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        rendezvous: OneMachine,
        requests: Requests,
        grace: float,
        hooks: Hooks,
        job: Path,
        server: ForkServer | None,
        restarts: bool,
    ) -> None:
        super().__init__(
            spec, logs_specs=DefaultLogsSpecs(log_dir=str(job.parent / "torch")), start_method="spawn"
        )
        self.job, self.hanging = job, Hanging(partial(read_pulse, job))
        self.rendezvous, self.arguments = rendezvous, spec.args
        self.requests, self.grace, self.hooks = requests, grace, hooks
        self.reached, self.stuck = hooks.progress(), 0
        self.blamed: int | None = None
        self.codes: dict[int, int] = {}
        self.server, self.restarts = server, restarts
        self.first = rendezvous.numbers(spec.local_world_size)[0]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start the ranks of a round, and pass them the file where they meet.

        No signal comes to a rank before it listens: they are blocked until it unblocks them.
        """
        meeting = self.rendezvous.meeting
        worker_group.spec.args = (*self.arguments, *([str(meeting)] if meeting else []))
        server = self.server
        with undisturbed(), _forked_from(server) if server else contextlib.nullcontext():
            started: dict[int, Any] = super()._start_workers(worker_group)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self.requests.first is not None:
            raise SignalException("asked to stop", self.requests.first)
        codes: dict[int, int] = {}
        self._kill_hung()
        if any(code for code in self._codes().values()) or self.hooks.abandoned():
            codes = self._end_the_rest()
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state is WorkerState.FAILED:
            codes = codes or {self.first + rank: f.exitcode for rank, f in result.failures.items()}
            self.codes = codes
            # A rank that could not even leave a note shows by its code that it ended on purpose.
            if self.hooks.ended() or UserError.exit_code in codes.values() or not self.restarts:
                self._remaining_restarts = 0
            else:
                self._judge(codes)
        return result

    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Give out the ranks' numbers; agents on other machines need not be asked."""
        first, size = self.rendezvous.numbers(spec.local_world_size)
        return [
            Worker(local, first + local, first + local, size, size) for local in range(spec.local_world_size)
        ]

    def _codes(self) -> dict[int, int | None]:
        """Exit codes by rank; None where it lives."""
        return {self.first + local: handler.proc.poll() for local, handler in self._handlers().items()}

    def _kill_hung(self) -> None:
        """Kill what hangs, with its process group; the rest then ends as after every death."""
        self.hooks.watching()
        alive = {self.first + n: h.proc.pid for n, h in self._handlers().items() if h.proc.poll() is None}
        if self.server is not None and alive:
            alive[FORK_SERVER] = self.server.pid
        for rank, text in self.hanging.look(alive).items():
            if rank != FORK_SERVER:
                leave_cause(self.job, rank, text)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(alive[rank], signal.SIGKILL)

    def _handlers(self) -> Mapping[int, Any]:
        handlers: Mapping[int, Any] = getattr(self._pcontext, "subprocess_handlers", {})
        return handlers

    def _end_the_rest(self) -> dict[int, int]:
        """One rank died: the others cannot go on, and torch would let them wait for half a minute.

        Returns:
            The codes of all that failed by themselves.
        """
        self._wait_for_all(NOTICE)
        if self._is_saving():  # the others wait for it, or have left it alone with its work
            self._wait_for_all(self.grace, self._is_saving)
            self._wait_for_all(NOTICE)
        codes = {rank: code for rank, code in self._codes().items() if code}
        self._kill_all()
        return codes

    def _wait_for_all(self, seconds: float, going_on: Callable[[], bool] = lambda: True) -> None:
        """Wait until every rank has ended: while ``going_on``, at most so long, not when somebody hurries."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.requests.hurry and None in self._codes().values():
            if not going_on():
                break
            self._kill_hung()
            time.sleep(0.02)

    def _is_saving(self) -> bool:
        """Whether a rank that lives is writing a checkpoint."""
        saving = self.hooks.saving()
        return any(h.proc.pid == saving and h.proc.poll() is None for h in self._handlers().values())

    def _kill_all(self) -> None:
        """Kill the ranks that are left.

        Raises:
            UserError: one does not end: what it waits for in the kernel does not answer.
        """
        left = {n: handler for n, handler in self._handlers().items() if handler.proc.poll() is None}
        for handler in left.values():
            with contextlib.suppress(ProcessLookupError):
                handler.close(signal.SIGKILL)  # its whole process group
        for local, handler in left.items():
            try:
                handler.proc.wait(UNKILLABLE)
            except subprocess.TimeoutExpired:
                raise UserError(
                    f"rank {self.first + local} (process {handler.proc.pid}) does not end when it is killed, "
                    "as a driver or a disk that it waits for does not answer; see dmesg, restart the machine "
                    "where that does not mend it, and go on with --resume"
                ) from None

    def _judge(self, codes: Mapping[int, int]) -> None:
        """Report who died; give up when it happens again and again without a step forward."""
        reached = self.hooks.progress()
        self.stuck = 0 if reached > self.reached else self.stuck + 1
        self.reached = max(self.reached, reached)
        server, self.server = self.server, self.server if self.server and self.server.alive else None
        if server is not None and self.server is None:
            text = f"the process that forks the ranks {how_it_ended(server.code or 0)}, and they died with it"
            self.hooks.died(None, server.code or 0, text)
            self.hooks.report(f"{text}; restarting from {where_from(reached)}")
            return
        rank = culprit(codes)
        causes = {r: self.hooks.cause(r) or f"rank {r} {how_it_ended(code)}" for r, code in codes.items()}
        died = causes[rank]
        for other in sorted(codes, key=lambda other: other == rank):  # the cause comes last: it is the reason
            if other == rank or codes[other] != LOST_PEER:
                self.hooks.died(other, codes[other], causes[other])
        if self.stuck > HOPELESS:
            self._remaining_restarts = 0
            self.blamed = rank
            self.hooks.report(f"{died}; {HOPELESS} restarts did not get a checkpoint further, giving up")
        else:
            self.hooks.report(f"{died}; restarting from {where_from(reached)}")

    def _shutdown(self, death_sig: Any = None, *rest: Any, **named: Any) -> None:
        """Torch allows 30 seconds; a step and its checkpoint may take longer."""
        if death_sig is not None:
            number = signal.SIGINT if death_sig == signal.SIGINT else signal.SIGTERM
            for handler in self._handlers().values():
                if handler.proc.poll() is None:
                    handler.proc.send_signal(number)
            self._wait_for_all(self.grace)
        self._kill_all()
        super()._shutdown(*rest, **named)


@contextlib.contextmanager
def _forked_from(server: ForkServer) -> Iterator[None]:
    """Inside, torch's agent has its processes forked; it asks for each of them in one place."""

    def forked(*, args: Sequence[str], env: Mapping[str, str], **_: Any) -> Forked:
        return server.fork(args[len(_INTERPRETER) :], {**os.environ, **env})

    with patch.object(multiprocessing, "get_subprocess_handler", forked):
        yield


def culprit(codes: Mapping[int, int]) -> int:
    """Of all ranks that ended, the cause: those that a signal killed, then those with their own error."""
    return min(codes, key=lambda rank: (codes[rank] == LOST_PEER, codes[rank]))


def how_it_ended(code: int) -> str:
    """How a process ended, as the end of a sentence."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "lost the connection to the others" if code == LOST_PEER else f"ended with code {code}"


@dataclass(frozen=True)
class Outcome:
    """How the ranks of a machine ended; what they had to say is in their notes.

    Attributes:
        signal: what ended them, None if nothing did.
        blamed: the rank that died again and again, None if none did.
        codes: of the ranks that failed by themselves when they last ran, by their numbers.
    """

    signal: signal.Signals | None
    blamed: int | None
    codes: dict[int, int]


def supervise(
    job: Path,
    devices: int,
    *,
    grace: float,
    hooks: Hooks,
    server: ForkServer | None = None,
    rendezvous: OneMachine | None = None,
    requests: Requests | None = None,
) -> Outcome:
    """Run ``devices`` ranks of a job on this machine until all have ended.

    Args:
        job: a file that :mod:`rankless.launch.worker` reads.
        devices: how many ranks.
        grace, hooks, server: see :class:`Agent`.
        rendezvous: where the ranks meet those of other machines; a coordinator then decides about restarts.
            Without one there are no others.
        requests: the signals of this process, where the caller has begun to note them.
    """
    _hush()
    restarts, rendezvous = rendezvous is None, rendezvous or OneMachine(job.parent)
    spec = WorkerSpec(
        role="rank",
        local_world_size=devices,
        rdzv_handler=rendezvous,
        entrypoint=sys.executable,
        args=(*_INTERPRETER, str(job), str(os.getpid())),
        # The agent gives up when nothing moves, not after a number.
        max_restarts=1_000_000 if restarts else 0,
        monitor_interval=0.1,
    )
    with requests or Requests() as noted:
        agent = Agent(spec, rendezvous, noted, grace, hooks, job, server, restarts)
        try:
            agent.run()
        except SignalException:
            return Outcome(noted.first, None, {})
        finally:
            rendezvous.shutdown()
    return Outcome(None, agent.blamed, agent.codes)


def _hush() -> None:
    """The agent speaks for torch's loggers, which are cut off at their root: each has its own level."""
    root = logging.getLogger("torch.distributed.elastic")
    root.propagate = False
    if not root.handlers:
        root.addHandler(logging.NullHandler())
