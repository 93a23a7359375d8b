"""One rank: ``python -m rankless.launch.worker JOB.json [PID [MEETING]]``, started by the launcher PID.

MEETING is the file at which the ranks of one machine meet; those of several meet at the address that the
environment names.

It initializes the process (signals, output, bound to its launcher's life), joins the others, does the job and
leaves a note of how it ended beside the job. Only rank 0 prints, on the standard output; everything that
libraries and interpreters print goes into logs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankless.errors import UserError
from rankless.hardware.heap import fill_with_nan, hold_freed_memory
from rankless.hardware.instruction_set import fix
from rankless.hardware.processes import die_with_parent, name_process
from rankless.hardware.shortages import shortage
from rankless.launch import rank_job
from rankless.launch.job import (
    LOST_PEER,
    Job,
    leave_cause,
    leave_note,
    leave_pulse,
    log_of,
    read_job,
    reserve_note,
)
from rankless.launch.rank_log import log_or_nothing, streams_of
from rankless.runs.directory import RunDirectory
from rankless.runs.journal import ending

if TYPE_CHECKING:
    from rankless.engine.loop import StopRequest


def main() -> int:
    """Do the job that the first argument names; the exit code."""
    path = Path(sys.argv[1])
    job = read_job(path)
    rank = int(os.environ.get("RANK", "0"))
    screen = _init_process(job, rank, launcher=int(sys.argv[2]) if len(sys.argv) > 2 else os.getppid())
    reserve_note(path, rank)
    try:
        fix(json.loads(job.recipe).get("cpu_isa", "native"))
        from rankless.engine.loop import StopRequest  # torch is imported from here on

        stop = StopRequest()
        stop.listen()
        answer = _train(job, path, rank, stop) if job.verb == "train" else _evaluate(job, screen)
    except UserError as error:
        return _left(error, job, path, rank)
    except Exception as error:
        from rankless.data.loader import LoaderDiedError
        from rankless.world.process_group import LostPeerError, is_lost_peer

        if not shortage(error) and is_lost_peer(error):
            # The agent names the worker that died; a traceback of everyone who missed it adds nothing.
            print(f"rank {rank}: lost a peer: {str(error).splitlines()[0]}", file=sys.stderr)
            if isinstance(error, LostPeerError):
                leave_cause(path, rank, str(error))
            return LOST_PEER
        if known := rank_job.understood(error):
            with contextlib.suppress(OSError):  # into the log, which a full disk does not take
                traceback.print_exc()
            return _left(known, job, path, rank)
        if isinstance(error, LoaderDiedError):
            leave_cause(path, rank, f"a loader process of rank {rank} {error}")
        raise
    if rank == 0:
        leave_note(path, rank, answer)
    return 0


def _left(error: UserError, job: Job, path: Path, rank: int) -> int:
    """Leave a note of an error that a restart would only meet again; the exit code."""
    note = rank_job.note_of(error, job)
    try:
        leave_note(path, rank, note)
    except OSError:  # the disk is full there, too; rank 0's output is the terminal
        with contextlib.suppress(OSError):
            print("\n".join(f"error: {sentence}" for sentence in note["problems"]), flush=True)
    return error.exit_code


def _train(job: Job, path: Path, rank: int, stop: StopRequest) -> dict[str, Any]:
    from rankless.engine.trace import Trace
    from rankless.recipe.load import from_json
    from rankless.world.process_group import TIMEOUT, join

    recipe = from_json(job.recipe)
    pulse = partial(leave_pulse, path, rank)
    pulse(0, TIMEOUT.total_seconds(), "starting")
    rank_job.fork_loaders_early(recipe)
    with rank_job.computes_like(recipe), join(_meeting()) as world:
        trace = Trace(path.parent / f"trace-{world.rank}.jsonl") if job.traced else None
        finished = rank_job.train(job, recipe, world, stop, trace, pulse=pulse)
        world.barrier()
    # The request may have come to another rank than this.
    return {"exit": 0, "finished": finished, "signal": 0 if finished else stop.signal or signal.SIGTERM}


def _evaluate(job: Job, screen: int) -> dict[str, Any]:
    """Score weights; ``screen`` is the launcher's standard error, where rank 0 shows how far it is."""
    from rankless.recipe.load import from_json
    from rankless.world.process_group import join

    recipe = from_json(job.recipe)
    rank_job.fork_loaders_early(recipe)
    with rank_job.computes_like(recipe), join(_meeting()) as world:
        with os.fdopen(screen, "w") as file:
            answer = rank_job.evaluate(job, recipe, world, file if world.is_first else None)
        world.barrier()
    return {"exit": 0, **answer}


def _meeting() -> Path | None:
    """Where the ranks of our own launcher meet."""
    return Path(sys.argv[3]) if len(sys.argv) > 3 else None


def _init_process(job: Job, rank: int, launcher: int) -> int:
    """Die with the launcher, and leave the terminal to what rank 0 prints on purpose.

    Returns:
        A descriptor of the standard error as it was.
    """
    screen = os.dup(2)
    die_with_parent(launcher)
    name_process(f"rank {rank}")
    hold_freed_memory()
    if job.dry_run_steps:  # verify: numbers from memory that nobody wrote must differ, not hide
        fill_with_nan()
    before = ending(RunDirectory(Path(job.run)).journal) if job.run else None
    log = log_or_nothing(log_of(Path(job.logs), rank), before or f"{job.verb} begins")
    for stream in streams_of(rank):
        os.dup2(log, stream)
    os.close(log)
    faulthandler.enable()
    return screen


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody may be there to hear it
            stream.flush()
    # Everything is written; the teardown of dozens of native threads has nothing more to add.
    os._exit(code)
