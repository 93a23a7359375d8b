"""One round of a host's ranks: from their start until all have ended, for whatever reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankless.launch import local
from rankless.launch.agent import GRACE, Hooks, Outcome, how_it_ended, supervise
from rankless.launch.job import Job, log_of, notes, read_notes, take_cause
from rankless.launch.rank_log import last_traceback
from rankless.launch.requests import Requests
from rankless.printing import warn
from rankless.runs.directory import RunDirectory
from rankless.runs.saving import saving_process
from rankless.world.rendezvous import OneOfMany


def run_round(
    job: Job,
    ranks: int,
    first: int,
    rendezvous: Callable[[Path], OneOfMany],
    requests: Requests,
    abandoned: Callable[[], bool],
    watching: Callable[[], None],
) -> dict[str, Any]:
    """Run ranks of a training on this host.

    Args:
        job: what they do.
        ranks: how many.
        first: the number of the first.
        rendezvous: makes where they meet the others, given the folder of the job.
        requests: takes what this process is asked to do.
        abandoned: whether the ranks of other hosts have gone.
        watching: called again and again while the ranks are watched.

    Returns:
        ``notes`` that the ranks left; ``codes``, ``causes`` and ``tracebacks`` of those that failed by
        themselves, by number; the ``signal`` that ended them; the last saved ``step``; and the ``traces`` of
        a dry run.
    """
    run = RunDirectory(Path(job.run))

    def progress() -> int:
        return run.pointed("last") or 0

    with local.job_written(job, None, first) as path:
        outcome = supervise(
            path,
            ranks,
            grace=GRACE,
            hooks=Hooks(
                ended=lambda: bool(notes(path)),
                progress=progress,
                saving=lambda: saving_process(run),
                cause=lambda _: None,
                died=lambda *_: None,
                report=warn,
                abandoned=abandoned,
                watching=watching,
            ),
            server=local.server_for(job),
            rendezvous=rendezvous(path.parent),
            requests=requests,
        )
        return {**_left(job, path, outcome), "step": progress()}


def _left(job: Job, path: Path, outcome: Outcome) -> dict[str, Any]:
    """What is to be read of ranks that have ended, beside the job at ``path`` and in their logs."""
    codes = outcome.codes
    tracebacks = {rank: last_traceback(log_of(Path(job.logs), rank)) for rank in codes}
    return {
        "notes": read_notes(path),
        "codes": codes,
        "causes": {r: take_cause(path, r) or f"rank {r} {how_it_ended(code)}" for r, code in codes.items()},
        "tracebacks": {rank: lines[-local.SHOWN :] for rank, lines in tracebacks.items()},
        "signal": outcome.signal.name if outcome.signal else None,
        "traces": {file.stem: file.read_text("utf-8") for file in path.parent.glob("trace-*.jsonl")},
    }
