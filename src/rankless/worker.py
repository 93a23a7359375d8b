"""One rank: ``python -m rankless.worker JOB.json``, started by a launcher.

It settles into the process (threads, signals, output, bound to its launcher's life), joins the others, does the
job, and leaves a note of how it ended beside the job. Only rank 0 speaks; the others write into logs.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankless.errors import UserError

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


@dataclass(frozen=True)
class Job:
    """What a launcher asks of its ranks; lies as JSON in a folder of its own.

    Attributes:
        verb: ``train`` or ``evaluate``.
        run: the run directory (train).
        recipe: the recipe as JSON, its precision resolved.
        resume: go on from the newest checkpoint (train).
        rehearse: end after so many steps and write digests of every tensor after each (train); 0 is a real run.
        weights: the weights file (evaluate).
        logs: where ranks other than the first write.
    """

    verb: str
    recipe: str
    logs: str
    run: str = ""
    resume: bool = False
    rehearse: int = 0
    weights: str = ""


def main() -> int:
    """Do the job that the first argument names; the exit code."""
    place = Path(sys.argv[1])
    job = Job(**json.loads(place.read_text(encoding="utf-8")))
    rank = int(os.environ.get("RANK", "0"))
    _settle(job, rank)
    from rankless.train.loop import StopRequest  # torch is imported from here on

    stop = StopRequest()
    stop.listen()
    try:
        answer = {"train": _train, "evaluate": _evaluate}[job.verb](job, place, stop)
    except UserError as error:
        leave_note(place, rank, {"exit": error.exit_code, "faults": list(error.faults)})
        return error.exit_code
    except Exception as error:
        if _is_lost_peer(error):
            # The agent names the worker that died; a traceback of everyone who missed it says nothing more.
            print(f"rank {rank}: lost a peer: {str(error).splitlines()[0]}", file=sys.stderr)
            return 1
        raise
    if rank == 0:
        leave_note(place, rank, answer)
    return 0


def leave_note(place: Path, rank: int, note: dict[str, Any]) -> None:
    """Say how a rank ended, beside the job."""
    beside = place.with_name(f".note-{rank}")
    beside.write_text(json.dumps(note), encoding="utf-8")
    beside.replace(place.with_name(f"note-{rank}.json"))


def _train(job: Job, place: Path, stop: Any) -> dict[str, Any]:
    from rankless.recipe_file import from_json
    from rankless.run_directory import RunDirectory
    from rankless.train.loop import Rehearsal, train
    from rankless.train.trace import Trace
    from rankless.train.settings import computes_like
    from rankless.world.join import join

    recipe = from_json(job.recipe)
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    with computes_like(recipe), join() as world:
        trace = Trace(place.parent / f"trace-{world.rank}.jsonl") if job.rehearse else None
        finished = train(
            recipe,
            RunDirectory(Path(job.run)),
            world,
            resume=job.resume or restarted,
            stop=stop,
            rehearsal=Rehearsal(job.rehearse) if job.rehearse else None,
            observe=trace,
        )
        world.barrier()
    return {"exit": 0, "finished": finished, "signal": stop.signal}


def _evaluate(job: Job, place: Path, stop: Any) -> dict[str, Any]:
    from rankless.evaluate import evaluate
    from rankless.models.weights import load, load_into
    from rankless.recipe_file import from_json
    from rankless.tasks import open_task
    from rankless.train.settings import computes_like
    from rankless.world.join import join

    recipe = from_json(job.recipe)
    weights = load(Path(job.weights))
    with computes_like(recipe), join() as world:
        task = open_task(recipe)
        if weights.class_names and tuple(task.class_names) != weights.class_names:
            raise UserError(
                f"{job.weights} knows {len(weights.class_names)} classes "
                f"({', '.join(weights.class_names[:8])} …), but the data has {len(task.class_names)} "
                f"({', '.join(task.class_names[:8])} …): give the data it was trained for"
            )
        model = task.model()
        load_into(model, weights.state, job.weights)
        scores = evaluate(task, model.to(world.device), recipe, world)
        world.barrier()
    return {"exit": 0, "scores": scores}


def _settle(job: Job, rank: int) -> None:
    """Die with the launcher, and leave the terminal to rank 0."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if rank:
        Path(job.logs).mkdir(parents=True, exist_ok=True)
        log = os.open(Path(job.logs) / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)


def _is_lost_peer(error: Exception) -> bool:
    """Whether a collective failed because another rank is gone."""
    import torch.distributed as dist

    if isinstance(error, dist.DistNetworkError | dist.DistBackendError | dist.DistStoreError):
        return True
    signs = ("onnection closed", "onnection reset", "roken pipe", "Timed out", "timeout", "gloo", "NCCL")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def write_job(job: Job, folder: Path) -> Path:
    """The job as a file for :func:`main`."""
    place = folder / "job.json"
    place.write_text(json.dumps(asdict(job)), encoding="utf-8")
    return place


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is written; the teardown of dozens of native threads has nothing more to add.
    os._exit(code)
