"""The work of a rank that Rankless (``worker``) or a cluster's launcher (``member``) has started.

This module imports PyTorch, so the instruction set must be fixed first.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import IO, Any

from rankless.data.loader import LoaderDiedError
from rankless.engine import evaluate as engine
from rankless.engine import loop
from rankless.engine.loader_count import loader_processes
from rankless.engine.loop import StopRequest, Trace
from rankless.engine.recompute import LeftOutError
from rankless.engine.setup import DryRun
from rankless.engine.sinks.sink import sink_class
from rankless.engine.watchdog import Pulse
from rankless.errors import LOST_PEER, ShortageError, TaskError, UserError, of_a_path
from rankless.hardware import forking
from rankless.hardware.computing import computes_like
from rankless.hardware.device_errors import device_error
from rankless.hardware.shortages import shortage
from rankless.launch.job import LEFT_OUT, Job, leave_cause, leave_note, leave_pulse
from rankless.printing import ProgressBar
from rankless.recipe.load import from_json
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.structures import Unreadable
from rankless.task_kinds import BUILT_IN
from rankless.tasks import open_task
from rankless.tasks.capabilities import capabilities
from rankless.tasks.protocol import Task
from rankless.user_code import blamed
from rankless.world.process_group import TIMEOUT, LostPeerError, World, is_lost_peer, join, ranks_here


def do(job: Job, path: Path, rank: int, meeting: Path | None, screen: int) -> int:
    """Run a job as a rank of Rankless's launcher, leave a note about how it ended, and return the exit code.

    The ranks of one machine meet at the file ``meeting``. If ``meeting`` is None, ranks meet at the address
    in the environment. Rank 0 shows the progress of an evaluation on the descriptor ``screen``.
    """
    try:
        stop = StopRequest()
        stop.listen()
        if job.verb == "train":
            note = run_training(job, path, rank, stop, meeting)
        else:
            note = run_evaluation(job, screen, meeting)
    except UserError as error:
        return _leave_error(error, job, path, rank)
    except LeftOutError as error:
        leave_cause(path, rank, str(error))
        return LEFT_OUT if rank in error.ranks else LOST_PEER
    except Exception as error:
        if not shortage(error) and is_lost_peer(error):
            # The launcher names the rank that died; tracebacks of the ranks that lost it do not help.
            print(f"rank {rank}: lost a peer: {str(error).splitlines()[0]}", file=sys.stderr)
            if isinstance(error, LostPeerError):
                leave_cause(path, rank, str(error))
            return LOST_PEER
        if known := understood(error):
            with contextlib.suppress(OSError):  # the disk of the log may be full
                traceback.print_exc()
            return _leave_error(known, job, path, rank)
        if isinstance(error, LoaderDiedError):
            leave_cause(path, rank, f"rank {rank}: {error}")
        raise
    if rank == 0:
        leave_note(path, rank, note)
    return 0


def _leave_error(error: UserError, job: Job, path: Path, rank: int) -> int:
    note = note_of(error, job)
    try:
        leave_note(path, rank, note)
    except OSError:  # the disk is full; rank 0 prints on the terminal
        with contextlib.suppress(OSError):
            print("\n".join(f"error: {sentence}" for sentence in note["problems"]), flush=True)
    return error.exit_code


def run_training(job: Job, path: Path, rank: int, stop: StopRequest, meeting: Path | None) -> dict[str, Any]:
    """Join the other ranks, train, and return a note about how the training ended."""
    recipe = from_json(job.recipe)
    pulse = partial(leave_pulse, path, rank)
    pulse(0, TIMEOUT.total_seconds(), "starting")
    fork_loaders_early(recipe)
    with computes_like(recipe), join(meeting) as world:
        trace = Trace(path.parent / f"trace-{world.rank}.jsonl") if job.traced else None
        finished = train(job, recipe, world, stop, trace, pulse=pulse)
        world.barrier()
    # The signal may have reached another rank.
    return {"exit": 0, "finished": finished, "signal": 0 if finished else stop.signal or signal.SIGTERM}


def run_evaluation(job: Job, screen: int, meeting: Path | None) -> dict[str, Any]:
    """Join the other ranks, evaluate the weights, and return a note with the scores."""
    recipe = from_json(job.recipe)
    fork_loaders_early(recipe)
    with computes_like(recipe), join(meeting) as world:
        with os.fdopen(screen, "w") as file:
            note = evaluate(job, recipe, world, file if world.is_first else None)
        world.barrier()
    return {"exit": 0, **note}


def train(
    job: Job,
    recipe: Recipe,
    world: World,
    stop: StopRequest,
    trace: Trace | None = None,
    task: Task | None = None,
    pulse: Pulse | None = None,
) -> bool:
    """Train as one of the ranks, and return whether all steps are done.

    ``trace`` observes a dry run, and ``pulse`` is as for :func:`rankless.engine.loop.train`.
    """
    return loop.train(
        recipe,
        RunDirectory(Path(job.run)),
        world,
        resume=True,  # the launcher has checked that a new run has no checkpoint
        launched=job.launched,
        task=task,
        stop=stop,
        dry_run=DryRun(job.dry_run_steps, job.dry_run_images) if job.dry_run_steps else None,
        observe=trace,
        sinks={name: sink_class(name) for name in job.sinks} if world.is_first else None,
        pulse=pulse,
    )


def evaluate(job: Job, recipe: Recipe, world: World, screen: IO[str] | None = None) -> dict[str, Any]:
    """Evaluate weights as one of the ranks, and return the scores, the number of images, notes and warnings.

    Only rank 0 receives the scores. If ``screen`` is given, show the progress on it.
    """
    from rankless.tasks import trained  # imports readers of exported files, which training does not need

    weights = trained.load(Path(job.weights))
    task = open_task(recipe, weights.class_names or None, exported=trained.is_exported(weights))
    if weights.class_names and tuple(task.class_names) != weights.class_names:  # a user's own task
        raise UserError(
            f"{job.weights}: has {len(weights.class_names)} classes "
            f"({', '.join(weights.class_names[:8])} …), but the task has {len(task.class_names)} "
            f"({', '.join(task.class_names[:8])} …); set data.root to the data that the weights were trained "
            f"on (now '{recipe.data.root}')"
        )
    model = trained.model(task, weights, job.weights)
    missing: list[Unreadable] = []
    with ProgressBar(1, "evaluating", file=screen) if screen else contextlib.nullcontext() as bar:
        progress = bar.show if bar else None
        scores = engine.evaluate(
            task, model.to(world.device), recipe, world, unreadable=missing.extend, progress=progress
        )
    warnings = [
        *trained.warnings(weights, job.weights),
        *engine.listed(missing),
        *trained.hints(scores, recipe),
    ]
    data = task.evaluation_data()
    notes = [*capabilities(data).notes]
    return {"scores": scores, "images": len(data), "notes": notes, "warnings": warnings}


def fork_loaders_early(recipe: Recipe) -> None:
    """Start the server that forks loader processes, before this rank computes anything."""
    # Do not ask PyTorch for GPUs yet, because starting CUDA starts threads.
    on_gpus = Path("/proc/driver/nvidia").exists() and not os.environ.get("RANKLESS_CPU")
    kind = "cuda" if on_gpus else "cpu"
    if loader_processes(recipe, ranks_here(), kind):
        if recipe.task in BUILT_IN:
            importlib.import_module(f"rankless.tasks.{recipe.task}")
        forking.fork_early()


def understood(error: Exception) -> UserError | None:
    """Return a UserError for an error that a restart would only repeat, or None for other errors."""
    return shortage(error) or device_error(error) or of_a_path(error) or blamed(error)


def note_of(error: UserError, job: Job) -> dict[str, Any]:
    """Return a rank's note about an error, with advice that depends on the recipe and the run."""
    once = isinstance(error, TaskError | ShortageError)  # report one of them, because their texts may differ
    if isinstance(error, TaskError):
        error = _with_resume_command(error, job)
    elif isinstance(error, ShortageError):
        error = _with_memory_advice(error, job)
    return {"exit": error.exit_code, "problems": list(error.problems), "once": once}


def _with_memory_advice(error: ShortageError, job: Job) -> UserError:
    recipe = from_json(job.recipe)
    micro, images = recipe.batch.micro, recipe.batch.images
    if job.verb == "train" and recipe.batch_norm == "sync":
        advice = (
            "with batch_norm: sync, a device holds all its micro-batches at once, so use more devices or a "
            f"smaller batch.images (now {images})"
        )
    elif micro > 1:
        advice = f"use a smaller batch.micro (now {micro})"
        if recipe.evaluate.batch != "auto":
            advice += f" or evaluate.batch (now {recipe.evaluate.batch})"
        if job.verb == "train":
            advice += f"; the global batch (batch.images: {images}) and the learning rate stay the same"
            if recipe.batch_norm == "micro":
                advice += ", but each batch norm then sees fewer images unless batch_norm is sync or frozen"
    else:
        advice = "batch.micro is already 1, so use a smaller model or smaller images"
    if job.verb == "train" and not recipe.model.checkpointing:
        advice += "; model.checkpointing=true needs less memory but more time, and gives the same bits"
    return UserError(f"{'; '.join(error.problems)}; {advice}")


def _with_resume_command(error: TaskError, job: Job) -> TaskError:
    text = f"the task {from_json(job.recipe).task} failed: {error}"
    run = RunDirectory(Path(job.run))
    step = run.pointed("last") if job.run else None
    if step:
        text += f"\nthe checkpoint of step {step} is complete; once the error is fixed, continue with: "
        text += run.again
    return TaskError(text)
