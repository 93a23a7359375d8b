"""What one rank does, whoever has started it: our own launcher (``worker``) or a cluster's (``member``).

Nothing here imports PyTorch before it is called: the instruction set must be fixed first.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rankless.errors import ShortageError, TaskError, UserError, of_a_path
from rankless.hardware.shortages import shortage
from rankless.launch.job import Job
from rankless.runs.directory import RunDirectory
from rankless.user_code import blamed

if TYPE_CHECKING:
    from rankless.engine.loop import StopRequest
    from rankless.engine.trace import Trace
    from rankless.engine.watchdog import Pulse
    from rankless.recipe.schema import Recipe
    from rankless.tasks.protocol import Task
    from rankless.world.process_group import World


def train(
    job: Job,
    recipe: Recipe,
    world: World,
    stop: StopRequest,
    trace: Trace | None = None,
    task: Task | None = None,
    pulse: Pulse | None = None,
) -> bool:
    """Train as one of the ranks; whether all steps are done.

    Args:
        job: what is to be done.
        recipe: the job's.
        world: the ranks, which compute like the recipe.
        stop: listens.
        trace: observes a dry run.
        task: this rank's; None opens the one that the recipe names.
        pulse: as for :func:`rankless.engine.loop.train`.

    Raises:
        UserError: as for :func:`rankless.engine.loop.train`.
    """
    from rankless.engine import loop
    from rankless.engine.setup import DryRun
    from rankless.engine.sinks.sink import sink_class

    return loop.train(
        recipe,
        RunDirectory(Path(job.run)),
        world,
        resume=True,  # who begins a run has seen that it holds no checkpoint
        launched=job.launched,
        task=task,
        stop=stop,
        dry_run=DryRun(job.dry_run_steps) if job.dry_run_steps else None,
        observe=trace,
        sinks={name: sink_class(name) for name in job.sinks} if world.is_first else None,
        pulse=pulse,
    )


def evaluate(job: Job, recipe: Recipe, world: World, screen: IO[str] | None = None) -> dict[str, Any]:
    """Score weights as one of the ranks; ``screen`` is where it is shown how far it is, None is nowhere.

    Returns:
        ``scores``, which are rank 0's alone, ``images``, how many there are to be scored, ``notes`` on their
        classes, and ``warnings``.

    Raises:
        UserError: weights or data that cannot be read, or that do not fit each other.
    """
    from rankless.engine import evaluate as engine
    from rankless.structures import Unreadable
    from rankless.tasks import open_task, trained
    from rankless.tasks.capabilities import capabilities

    weights = trained.load(Path(job.weights))
    task = open_task(recipe, weights.class_names or None, exported=trained.is_exported(weights))
    if weights.class_names and tuple(task.class_names) != weights.class_names:  # of a task of one's own
        raise UserError(
            f"{job.weights} knows {len(weights.class_names)} classes "
            f"({', '.join(weights.class_names[:8])} …), but the task has {len(task.class_names)} "
            f"({', '.join(task.class_names[:8])} …): give the data it was trained for, as in "
            f"data.root=FOLDER (now '{recipe.data.root}')"
        )
    model = trained.model(task, weights, job.weights)
    missing: list[Unreadable] = []
    with _shown(screen) as progress:
        scores = engine.evaluate(
            task, model.to(world.device), recipe, world, unreadable=missing.extend, progress=progress
        )
    warnings = [
        *trained.warnings(weights, job.weights),
        *engine.listed(missing),
        *trained.hints(scores, recipe),
    ]
    data = task.evaluation_data()
    return {
        "scores": scores,
        "images": len(data),
        "notes": [*capabilities(data).notes],
        "warnings": warnings,
    }


@contextmanager
def _shown(screen: IO[str] | None) -> Iterator[Callable[[int, int], None] | None]:
    """Inside, what is to be called with how much of an evaluation is done, and of how much."""
    if screen is None:
        yield None
        return
    from rankless.printing import ProgressBar

    bar = ProgressBar(1, "evaluating", file=screen)
    with bar:
        yield bar.show


def computes_like(recipe: Recipe) -> Any:
    """A context inside which PyTorch computes as the recipe says."""
    from rankless.engine import settings

    return settings.computes_like(recipe)


def fork_loaders_early(recipe: Recipe) -> None:
    """Have loader processes start from what this rank has imported, which has computed nothing so far."""
    from rankless.data import loader_server
    from rankless.engine.workers import loader_processes
    from rankless.tasks.custom import BUILT_IN
    from rankless.world.process_group import ranks_here

    # PyTorch may not be asked for GPUs yet: what starts CUDA starts threads, too.
    on_gpus = Path("/proc/driver/nvidia").exists() and not os.environ.get("RANKLESS_CPU")
    kind = "cuda" if on_gpus else "cpu"
    if sys.platform == "linux" and loader_processes(recipe, ranks_here(), kind):
        if recipe.task in BUILT_IN:
            importlib.import_module(f"rankless.tasks.{recipe.task}")
        loader_server.fork_early()


def understood(error: Exception) -> UserError | None:
    """The error as one that a restart would only meet again; None where it may help."""
    return shortage(error) or of_a_path(error) or blamed(error)


def note_of(error: UserError, job: Job) -> dict[str, Any]:
    """What a rank leaves behind about an error, with what only who knows the recipe and the run can add.

    ``once``: other ranks may have met the same in other words, and one of them is enough.
    """
    once = isinstance(error, TaskError | ShortageError)
    if isinstance(error, TaskError):
        error = _with_a_way_on(error, job)
    elif isinstance(error, ShortageError):
        error = _with_less(error, job)
    return {"exit": error.exit_code, "problems": list(error.problems), "once": once}


def error_in(notes: Sequence[dict[str, Any]]) -> UserError | None:
    """The error that ranks have left notes about; None without one."""
    failed = [note for note in notes if note.get("problems")]
    for note in failed:
        if note.get("once"):
            return (TaskError if note["exit"] == TaskError.exit_code else UserError)(note["problems"])
    if not failed:
        return None
    return UserError(dict.fromkeys(sentence for note in failed for sentence in note["problems"]))


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
        if recipe.evaluate.batch != "auto":
            advice += f" or evaluate.batch (now {recipe.evaluate.batch})"
        if job.verb == "train":
            advice += f"; the global batch (batch.images: {images}) and the learning rate stay as they are"
            if recipe.batch_norm == "micro":
                advice += ", but each batch norm then sees fewer images unless batch_norm is sync or frozen"
    else:
        advice = "batch.micro is 1 already, so use a smaller model or smaller images"
    if job.verb == "train" and not recipe.model.checkpointing:
        advice += "; model.checkpointing=true takes less memory, and more time, with the same numbers"
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
