"""Start, supervise and end one machine's ranks in one round."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from rankless.errors import LOST_PEER, UserError
from rankless.hardware.forking import ForkServer
from rankless.hardware.processes import stop_signals_blocked
from rankless.launch.fork_server import run_worker
from rankless.launch.hanging import FORK_SERVER, HangDetector
from rankless.launch.job import Job, Place, leave_cause, log_of, read_notes, read_pulse, take_cause
from rankless.launch.rank_log import exception_in, last_start, last_traceback
from rankless.launch.requests import Requests
from rankless.launch.rounds import Death, Failure, RoundEnd, how_it_ended
from rankless.runs.directory import RunDirectory
from rankless.runs.saving import saving_process
from rankless.world.rendezvous import private_rendezvous

NOTICE = 3.0  # seconds for ranks to end by themselves after they lost another rank
SHOWN = 30  # maximum number of lines printed from a log
# -P prevents the import of files in the current folder in place of libraries.
_INTERPRETER = (sys.executable, "-P", "-m", "rankless.launch.worker")
_LONG = 200  # characters of a line of a log
_POLL = 0.05
_UNKILLABLE = 30.0  # seconds that a killed process may take to end
_TOUCH = 3600.0  # seconds; systems remove temporary files that are days old


class Process(Protocol):
    """A rank's process, which is the leader of its own process group."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...


class Ranks:
    """The ranks of one round on this machine.

    ``abandoned`` returns whether ranks on other machines are gone, so that these ranks cannot continue.
    ``watching`` is called repeatedly while the ranks run.
    """

    def __init__(
        self,
        job: Job,
        path: Path,
        count: int,
        requests: Requests,
        server: ForkServer | None,
        *,
        grace: float,
        number: int = 1,
        place: Place | None = None,
        abandoned: Callable[[], bool] = lambda: False,
        watching: Callable[[], None] = lambda: None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.job, self.path, self.count, self.requests, self.server = job, path, count, requests, server
        self.grace, self.number, self.place = grace, number, place
        self.abandoned, self.watching, self.more = abandoned, watching, more or {}
        self.first = place.first if place else 0
        self.processes: dict[int, Process] = {}
        self.hang_detector = HangDetector(partial(read_pulse, path))
        self._touched = time.monotonic()

    def run(self) -> RoundEnd:
        """Run the ranks until all have ended, and return the outcome of the round."""
        with private_rendezvous() if self.place is None else contextlib.nullcontext() as meeting:
            try:
                self._start(meeting)
                failed = self._watch(meeting)
            finally:
                self._kill_all()
        return self._outcome(failed)

    def _start(self, meeting: Path | None) -> None:
        words = [str(self.path), str(os.getpid()), *([str(meeting)] if meeting else [])]
        with stop_signals_blocked():
            for local in range(self.count):
                environment = {**os.environ, **self.more, **self._variables(local)}
                self.processes[self.first + local] = (
                    self.server.fork(run_worker, words, environment)
                    if self.server
                    else subprocess.Popen([*_INTERPRETER, *words], env=environment, start_new_session=True)
                )

    def _variables(self, local: int) -> dict[str, str]:
        place = self.place
        found = {
            "RANK": self.first + local,
            "LOCAL_RANK": local,
            "WORLD_SIZE": place.size if place else self.count,
            "LOCAL_WORLD_SIZE": self.count,
            "MASTER_ADDR": place.address if place else "127.0.0.1",
            "MASTER_PORT": place.port if place else 0,
            "TORCHELASTIC_RESTART_COUNT": self.number - 1,
            "TORCHELASTIC_RUN_ID": "hosts",  # the same on all machines
            "TORCHELASTIC_USE_AGENT_STORE": place is not None,  # no rank opens a store here
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }
        return {name: str(value) for name, value in found.items()}

    def _watch(self, meeting: Path | None) -> dict[int, int]:
        """Wait until all ranks have ended, and return the exit codes of ranks that failed by themselves."""
        while None in (codes := self._codes()).values():
            if self.requests.first is not None:
                self._stop(self.requests.first)
                return {}
            if any(codes.values()) or self.abandoned():
                return self._end_others()
            self._kill_hung()
            self._touch(meeting)
            time.sleep(_POLL)
        return {} if self.requests.first else {rank: code for rank, code in codes.items() if code}

    def _codes(self) -> dict[int, int | None]:
        return {rank: process.poll() for rank, process in self.processes.items()}

    def _stop(self, by: signal.Signals) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGINT if by is signal.SIGINT else signal.SIGTERM)
        self._wait_for_all(self.grace)

    def _end_others(self) -> dict[int, int]:
        self._wait_for_all(NOTICE)
        if self._is_saving():  # the other ranks may wait for the saving rank, or have already ended
            self._wait_for_all(self.grace, self._is_saving)
            self._wait_for_all(NOTICE)
        return {rank: code for rank, code in self._codes().items() if code}

    def _wait_for_all(self, seconds: float, proceed: Callable[[], bool] = lambda: True) -> None:
        """Wait up to ``seconds`` for all ranks to end, but only while ``proceed`` returns True."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.requests.hurry and None in self._codes().values():
            if not proceed():
                break
            self._kill_hung()
            time.sleep(0.02)

    def _is_saving(self) -> bool:
        saving = saving_process(RunDirectory(Path(self.job.run))) if self.job.run else None
        return any(one.pid == saving and one.poll() is None for one in self.processes.values())

    def _kill_hung(self) -> None:
        self.watching()
        alive = {rank: one.pid for rank, one in self.processes.items() if one.poll() is None}
        if self.server is not None and alive:
            alive[FORK_SERVER] = self.server.pid
        for rank, text in self.hang_detector.check(alive).items():
            if rank != FORK_SERVER:
                leave_cause(self.path, rank, text)
            elif self.server is not None:
                self.server.cause = text.removeprefix(f"rank {rank} ")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(alive[rank], signal.SIGKILL)

    def _kill_all(self) -> None:
        left = {rank: one for rank, one in self.processes.items() if one.poll() is None}
        for process in left.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for rank, process in left.items():
            try:
                process.wait(_UNKILLABLE)
            except subprocess.TimeoutExpired:
                raise UserError(
                    f"rank {rank} (process {process.pid}) could not be killed, probably because a driver or "
                    "a disk does not respond; see the output of dmesg, restart the machine if necessary, and "
                    "continue with --resume"
                ) from None

    def _touch(self, meeting: Path | None) -> None:
        """Touch the job file and the meeting file regularly, so that cleanup tools do not remove them."""
        if time.monotonic() < self._touched + _TOUCH:
            return
        self._touched = time.monotonic()
        for folder in filter(None, (self.path.parent, meeting and meeting.parent)):
            for path in (folder, *folder.rglob("*")):
                with contextlib.suppress(OSError):  # the file was removed meanwhile
                    os.utime(path)

    def _outcome(self, codes: dict[int, int]) -> RoundEnd:
        death = None
        if codes and self.server is not None and not self.server.alive:
            code = self.server.code or 0
            ended = self.server.cause or how_it_ended(code)
            text = f"the process that forks the ranks {ended}, so the ranks died with it"
            death = Death(None, code, text)
        files = self.path.parent.glob("trace-*.jsonl")
        traces = {int(file.stem.removeprefix("trace-")): file.read_text("utf-8") for file in files}
        return RoundEnd(
            notes=read_notes(self.path),
            failed={rank: self._failure(rank, code) for rank, code in codes.items()},
            signal=int(self.requests.first or 0),
            step=saved_step(self.job),
            fork_server=death,
            traces=traces if self.place else {},
        )

    def _failure(self, rank: int, code: int) -> Failure:
        lines = last_start(log_of(Path(self.job.logs), rank))
        traceback = last_traceback(lines)
        if cause := take_cause(self.path, rank):
            return Failure(code, cause, traceback[-SHOWN:])
        exited = code > 0 and code != LOST_PEER
        exception = exception_in(traceback) if exited else ""
        said = exception or next((line for line in reversed(lines) if line and exited), "")[:_LONG]
        cause = f"rank {rank} {how_it_ended(code)}" + f": {said}" * bool(said)
        return Failure(code, cause, traceback[-SHOWN:], exception)


def saved_step(job: Job) -> int:
    """Return the newest saved step of a run, or 0 if there is none."""
    return (RunDirectory(Path(job.run)).pointed("last") or 0) if job.run else 0
