"""Training in the current process with a thread per device; the ranks exchange in memory.

Rank 0 is the calling thread, so that its breakpoints, signals and output work as usual.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from rankless.engine.loop import StopRequest
from rankless.errors import UserError, counted
from rankless.launch import rank_job
from rankless.launch.job import Job
from rankless.launch.opening import cards, device
from rankless.recipe.schema import Recipe
from rankless.tasks import open_task
from rankless.world.process_group import LostPeerError, World
from rankless.world.threads import Meeting, join_threads


def problems(recipe: Recipe, devices: int | None) -> list[str]:
    """Describe everything that prevents ranks from being threads."""
    found = []
    if recipe.reduce == "fast":
        found.append(
            "parallel: reduce is 'fast', but threads exchange along the fixed tree alone; use reduce=exact, "
            "or leave parallel out"
        )
    if recipe.model.checkpointing:
        found.append(
            "parallel: model.checkpointing is true, but a block that is computed again draws from generators "
            "that threads share; use model.checkpointing=false, or leave parallel out"
        )
    there = cards()
    if there and devices and devices > there:
        found.append(
            f"parallel: {devices} threads, but there {'is' if there == 1 else 'are'} "
            f"{counted(there, 'GPU')}, and each has one thread; use fewer devices, or leave parallel out"
        )
    return found


def train(job: Job, recipe: Recipe, size: int, stop: StopRequest) -> bool:
    """Train with ``size`` threads; return whether all steps are done, or raise the ranks' error.

    PyTorch must already be set up for the recipe.
    """
    kind = device().type
    devices = [torch.device(kind, number) if kind == "cuda" else torch.device(kind) for number in range(size)]
    # One after another, not in the threads: importing a task affects the process.
    tasks = [open_task(recipe) for _ in devices]
    meeting = Meeting(size)
    finished = [False] * size
    errors: list[BaseException | None] = [None] * size

    def work(world: World) -> None:
        try:
            torch.set_num_threads(recipe.threads)  # each thread has its own number
            if kind == "cuda":
                torch.cuda.set_device(world.device)
            finished[world.rank] = rank_job.train(job, recipe, world, stop, task=tasks[world.rank])
        except BaseException as error:
            errors[world.rank] = error
        finally:
            meeting.leave(world.rank)

    with join_threads(meeting, devices) as worlds:
        threads = [
            threading.Thread(target=work, args=(world,), name=f"rank {world.rank}", daemon=True)
            for world in worlds[1:]
        ]
        for thread in threads:
            thread.start()
        work(worlds[0])
        for thread in threads:
            thread.join()
    if (error := _first(errors)) is not None:
        raise error
    return finished[0]


def _first(errors: Sequence[BaseException | None]) -> BaseException | None:
    """Return the error to raise for all ranks; errors that only report a lost peer count last."""
    met = [error for error in errors if error is not None]
    causes = [error for error in met if not isinstance(error, LostPeerError)]
    others = [error for error in causes if not isinstance(error, UserError)]
    if others or not causes:
        return next(iter([*others, *met]), None)
    texts = {error.problems: error for error in causes if isinstance(error, UserError)}
    if len(texts) == 1:
        return causes[0]
    return UserError(dict.fromkeys(problem for problems in texts for problem in problems))
