"""In place of a launcher and its processes: one rank, in this process, or none at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankless.launch.job import Job
    from rankless.launch.rounds import RoundEnd


class Started(BaseException):
    """Every check is passed and the ranks would be started now."""


def one_rank(_: object, place: Path, *__: Any) -> RoundEnd:
    """Do what :func:`rankless.launch.rank_job.do` does for rank 0, without listening for signals."""
    from rankless.engine.loop import StopRequest
    from rankless.errors import UserError
    from rankless.launch import rank_job
    from rankless.launch.job import leave_note, read_job, read_notes
    from rankless.launch.rounds import RoundEnd

    job = read_job(place)
    try:
        if job.verb == "train":
            answer = rank_job.run_training(job, place, 0, StopRequest(), None)
        else:
            answer = rank_job.run_evaluation(job, os.open(os.devnull, os.O_WRONLY), None)
        leave_note(place, 0, answer)
    except UserError as error:
        leave_note(place, 0, {"exit": error.exit_code, "problems": list(error.problems)})
    return RoundEnd(notes=read_notes(place))


def no_rank_at_first(job: Job, place: Path, *_: Any, **__: Any) -> RoundEnd:
    """One rank for what reads weights or a run; none for a training that begins, which costs too much."""
    from rankless.runs.directory import RunDirectory

    if job.verb == "train" and not RunDirectory(Path(job.run)).steps():
        raise Started
    return one_rank(job, place)


@contextlib.contextmanager
def in_this_process(supervise: Any = no_rank_at_first) -> Iterator[None]:
    """No process is started while it lasts."""
    from rankless.engine import loader_count
    from rankless.launch import local

    real = local.run_ranks, loader_count.loader_processes
    local.run_ranks, loader_count.loader_processes = supervise, lambda *_: 0
    try:
        yield
    finally:
        local.run_ranks, loader_count.loader_processes = real
