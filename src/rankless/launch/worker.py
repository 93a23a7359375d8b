"""Run one rank of Rankless's launcher: ``python -m rankless.launch.worker JOB.json [PID [MEETING]]``.

PID is the process ID of the launcher. MEETING is the file at which the ranks of one machine meet; ranks on
several machines meet at the address in the environment. This module sets up the process and fixes the
instruction set before PyTorch is imported.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
from pathlib import Path

from rankless.errors import UserError
from rankless.hardware.heap import fill_with_nan, hold_freed_memory
from rankless.hardware.instruction_set import fix
from rankless.hardware.processes import die_with_parent, name_process
from rankless.launch.job import Job, leave_note, log_of, read_job, reserve_note
from rankless.launch.rank_log import log_or_nothing, streams_of
from rankless.runs.directory import RunDirectory
from rankless.runs.journal import ending


def main() -> int:
    """Run the job file named on the command line, and return the exit code."""
    path = Path(sys.argv[1])
    job = read_job(path)
    rank = int(os.environ.get("RANK", "0"))
    screen = _init_process(job, rank, launcher=int(sys.argv[2]) if len(sys.argv) > 2 else os.getppid())
    reserve_note(path, rank)
    try:
        fix(json.loads(job.recipe).get("cpu_isa", "native"))
    except UserError as error:
        leave_note(path, rank, {"exit": error.exit_code, "problems": list(error.problems)})
        return error.exit_code
    from rankless.launch import rank_job  # imports PyTorch

    return rank_job.do(job, path, rank, Path(sys.argv[3]) if len(sys.argv) > 3 else None, screen)


def _init_process(job: Job, rank: int, launcher: int) -> int:
    """Set up the process, and return a duplicate of its original standard error."""
    screen = os.dup(2)
    die_with_parent(launcher)
    name_process(f"rank {rank}")
    hold_freed_memory()
    if job.dry_run_steps:  # verify: reading uninitialized memory must show as a difference
        fill_with_nan()
    before = ending(RunDirectory(Path(job.run)).journal) if job.run else None
    log = log_or_nothing(log_of(Path(job.logs), rank), before or f"{job.verb} starts")
    for stream in streams_of(rank):
        os.dup2(log, stream)
    os.close(log)
    faulthandler.enable()
    return screen


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader of the output may be gone
            stream.flush()
    # Everything is written: skip the teardown of dozens of native threads.
    os._exit(code)
