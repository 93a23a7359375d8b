"""One rank: ``python -m rankless.launch.worker JOB.json [PID [MEETING]]``, started by the launcher PID.

MEETING is the file at which the ranks of our own launcher meet; under any other, such as torchrun, they meet
at the address that the environment names.

It initializes the process (signals, output, bound to its launcher's life), joins the others, does the job and
leaves a note of how it ended beside the job. Only rank 0 prints, on the standard output; everything that
libraries and interpreters print goes into logs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankless.errors import ShortageError, TaskError, UserError, of_a_path
from rankless.hardware.processes import die_with_parent, name_process
from rankless.hardware.shortages import shortage
from rankless.launch.job import LOST_PEER, Job, leave_cause, leave_note, log_of, read_job, reserve_note
from rankless.launch.rank_log import open_log
from rankless.recipe.instruction_set import fix
from rankless.runs.directory import RunDirectory
from rankless.runs.journal import ending
from rankless.user_code import blamed

if TYPE_CHECKING:
    from rankless.recipe.schema import Recipe


def main() -> int:
    """Do the job that the first argument names; the exit code."""
    path = Path(sys.argv[1])
    job = read_job(path)
    rank = int(os.environ.get("RANK", "0"))
    _init_process(job, rank, launcher=int(sys.argv[2]) if len(sys.argv) > 2 else os.getppid())
    reserve_note(path, rank)
    try:
        fix(json.loads(job.recipe).get("cpu_isa", "native"))
        from rankless.engine.loop import StopRequest  # torch is imported from here on

        stop = StopRequest()
        stop.listen()
        answer = {"train": _train, "evaluate": _evaluate}[job.verb](job, path, stop)
    except UserError as error:
        return _left(error, job, path, rank)
    except Exception as error:
        from rankless.data.loader import LoaderDiedError
        from rankless.world.process_group import is_lost_peer

        short = shortage(error)
        if not short and is_lost_peer(error):
            # The agent names the worker that died; a traceback of everyone who missed it adds nothing.
            print(f"rank {rank}: lost a peer: {str(error).splitlines()[0]}", file=sys.stderr)
            return LOST_PEER
        if known := short or of_a_path(error) or blamed(error):
            traceback.print_exc()  # the whole of it, into the log
            return _left(known, job, path, rank)
        if isinstance(error, LoaderDiedError):
            leave_cause(path, rank, f"a loader process of rank {rank} {error}")
        raise
    if rank == 0:
        leave_note(path, rank, answer)
    return 0


def _left(error: UserError, job: Job, path: Path, rank: int) -> int:
    """Leave a note of an error that a restart would only meet again; the exit code."""
    note = _note(error, job)
    try:
        leave_note(path, rank, note)
    except OSError:  # the disk is full there, too; rank 0's output is the terminal
        with contextlib.suppress(OSError):
            print("\n".join(f"error: {sentence}" for sentence in note["problems"]), flush=True)
    return error.exit_code


def _note(error: UserError, job: Job) -> dict[str, Any]:
    """What a rank leaves behind about an error, with what only who knows the recipe and the run can add.

    ``once``: other ranks may have met the same in other words, and one of them is enough.
    """
    once = isinstance(error, TaskError | ShortageError)
    if isinstance(error, TaskError):
        error = _with_a_way_on(error, job)
    elif isinstance(error, ShortageError):
        error = _with_less(error, job)
    return {"exit": error.exit_code, "problems": list(error.problems), "once": once}


def _with_less(error: ShortageError, job: Job) -> UserError:
    """Memory ran out in a rank: what to change."""
    from rankless.recipe.load import from_json

    recipe = from_json(job.recipe)
    micro, images = recipe.batch.micro, recipe.batch.images
    if job.verb == "train" and recipe.batch_norm == "sync":
        advice = (
            "with batch_norm: sync a device holds all its micro-batches at once, so use more devices, or a "
            f"smaller batch.images (now {images})"
        )
    elif micro > 1:
        advice = f"use a smaller batch.micro (now {micro})"
        if job.verb == "train":
            advice += f"; the global batch (batch.images: {images}) and the learning rate stay as they are"
            if recipe.batch_norm == "micro":
                advice += ", but each batch norm then sees fewer images unless batch_norm is sync or frozen"
    else:
        advice = "batch.micro is 1 already, so use a smaller model or smaller images"
    return UserError(f"{'; '.join(error.problems)}; {advice}")


def _with_a_way_on(error: TaskError, job: Job) -> TaskError:
    """The error in the user's code, with the task's name and what to do when it is fixed."""
    from rankless.recipe.load import from_json

    text = f"the task {from_json(job.recipe).task} failed: {error}"
    step = RunDirectory(Path(job.run)).pointed("last") if job.run else None
    if step:
        text += f"\nthe checkpoint of step {step} is whole; once the error is fixed, go on with: "
        text += f"rankless train --resume --run {job.run}"
    return TaskError(text)


def _train(job: Job, path: Path, stop: Any) -> dict[str, Any]:
    from rankless.engine.loop import train
    from rankless.engine.settings import computes_like
    from rankless.engine.setup import DryRun
    from rankless.engine.sinks.sink import sink_class
    from rankless.engine.trace import Trace
    from rankless.recipe.load import from_json
    from rankless.world.process_group import join

    recipe = from_json(job.recipe)
    _fork_loaders_early(recipe)
    with computes_like(recipe), join(_meeting()) as world:
        trace = Trace(path.parent / f"trace-{world.rank}.jsonl") if job.dry_run_steps else None
        finished = train(
            recipe,
            RunDirectory(Path(job.run)),
            world,
            resume=True,  # a launcher that begins a run has seen that it holds no checkpoint
            launched=job.launched,
            stop=stop,
            dry_run=DryRun(job.dry_run_steps) if job.dry_run_steps else None,
            observe=trace,
            sinks={name: sink_class(name) for name in job.sinks} if world.is_first else None,
        )
        world.barrier()
    # The request may have come to another rank than this.
    return {"exit": 0, "finished": finished, "signal": 0 if finished else stop.signal or signal.SIGTERM}


def _evaluate(job: Job, path: Path, stop: Any) -> dict[str, Any]:
    from rankless.engine.evaluate import evaluate, listed
    from rankless.engine.settings import computes_like
    from rankless.models.checkpoints.weights import load, load_into
    from rankless.recipe.load import from_json
    from rankless.structures import Unreadable
    from rankless.tasks import open_task
    from rankless.world.process_group import join

    recipe = from_json(job.recipe)
    _fork_loaders_early(recipe)
    weights = load(Path(job.weights))
    with computes_like(recipe), join(_meeting()) as world:
        task = open_task(recipe)
        if weights.class_names and tuple(task.class_names) != weights.class_names:
            raise UserError(
                f"{job.weights} knows {len(weights.class_names)} classes "
                f"({', '.join(weights.class_names[:8])} …), but the data has {len(task.class_names)} "
                f"({', '.join(task.class_names[:8])} …): give the data it was trained for, as in "
                f"data.root=FOLDER (now '{recipe.data.root}')"
            )
        model = task.model()
        load_into(model, weights.state, job.weights)
        missing: list[Unreadable] = []
        scores = evaluate(task, model.to(world.device), recipe, world, unreadable=missing.extend)
        world.barrier()
    return {"exit": 0, "scores": scores, "warnings": [*listed(missing), *_none_found(scores, recipe)]}


def _none_found(scores: Mapping[str, Any], recipe: Recipe) -> Iterator[str]:
    """Say what to try where a detector found none of the objects, and its less certain ones were left out."""
    usual, confidence = type(recipe.evaluate).confidence, recipe.evaluate.confidence
    if recipe.task == "detect" and scores.get("AR100") == 0 and confidence > usual:
        yield (
            f"none of the objects was found with evaluate.confidence={confidence:g}; try a lower one, such "
            f"as evaluate.confidence={usual:g}"
        )


def _fork_loaders_early(recipe: Recipe) -> None:
    """Have loader processes start from what this rank has imported, which has computed nothing so far."""
    from rankless.data import loader_server
    from rankless.tasks.custom import BUILT_IN

    if recipe.workers and sys.platform == "linux":
        if recipe.task in BUILT_IN:
            importlib.import_module(f"rankless.tasks.{recipe.task}")
        loader_server.fork_early()


def _meeting() -> Path | None:
    """Where the ranks of our own launcher meet."""
    return Path(sys.argv[3]) if len(sys.argv) > 3 else None


def _init_process(job: Job, rank: int, launcher: int) -> None:
    """Die with the launcher, and leave the terminal to what rank 0 prints on purpose."""
    die_with_parent(launcher)
    name_process(f"rank {rank}")
    try:
        before = ending(RunDirectory(Path(job.run)).journal) if job.run else None
        log = open_log(log_of(Path(job.logs), rank), before or f"{job.verb} begins")
    except OSError:  # a full disk; what needs it will report it
        log = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2) if rank else (2,):
        os.dup2(log, stream)
    os.close(log)
    faulthandler.enable()


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody may be there to hear it
            stream.flush()
    # Everything is written; the teardown of dozens of native threads has nothing more to add.
    os._exit(code)
