"""Train in the current process with one rank, or with one thread per rank.

Rank 0 is the calling thread, so its breakpoints, signals and output work as usual. Dead ranks are not
restarted, and libraries print to the terminal.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from rankless.data.loader import LoaderDiedError
from rankless.engine.loop import StopRequest
from rankless.errors import UserError, counted
from rankless.hardware import instruction_set
from rankless.hardware.compute_device import compute_device
from rankless.hardware.computing import computes_like
from rankless.launch import rank_job
from rankless.launch.job import Job, error_in
from rankless.launch.opening import gpu_count
from rankless.launch.requests import Requests
from rankless.randomness import kept_generators
from rankless.recipe.load import from_json
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.tasks import open_task
from rankless.world.process_group import LostPeerError, World, is_joined, join
from rankless.world.thread_transport import Meeting, thread_ranks


def _problems_of_threads(recipe: Recipe, devices: int | None) -> list[str]:
    found = []
    if recipe.reduce == "fast":
        found.append(
            "parallel: reduce is 'fast', but threads exchange only along the fixed tree; use reduce=exact, "
            "or remove parallel"
        )
    if recipe.model.checkpointing:
        found.append(
            "parallel: model.checkpointing is true, but recomputed blocks use random generators that threads "
            "share; use model.checkpointing=false, or remove parallel"
        )
    if recipe.compute == "compiled":
        found.append(
            "parallel: compute is 'compiled', but PyTorch does not compile passes in which each thread has "
            "its own random generator; use compute=eager, or remove parallel"
        )
    there = gpu_count()
    if there and devices and devices > there:
        found.append(
            f"parallel: {devices} threads were requested, but there {'is' if there == 1 else 'are'} "
            f"{counted(there, 'GPU')}; expected at most one thread per GPU; use fewer devices, or remove "
            "parallel"
        )
    return found


def _train_in_threads(job: Job, recipe: Recipe, size: int, stop: StopRequest) -> bool:
    """Train with ``size`` threads, and return whether all steps are done."""
    kind = compute_device().type
    devices = [torch.device(kind, number) if kind == "cuda" else torch.device(kind) for number in range(size)]
    # Open the tasks one after another and not in the threads, because importing a task affects the process.
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

    first, *others = thread_ranks(meeting, devices)
    threads = [
        threading.Thread(target=work, args=(world,), name=f"rank {world.rank}", daemon=True)
        for world in others
    ]
    for thread in threads:
        thread.start()
    work(first)
    for thread in threads:
        thread.join()
    if (error := _main_error(errors)) is not None:
        raise error
    return finished[0]


def _main_error(errors: Sequence[BaseException | None]) -> BaseException | None:
    """Return the error to raise for all ranks, preferably not one that merely reports a lost peer."""
    met = [error for error in errors if error is not None]
    causes = [error for error in met if not isinstance(error, LostPeerError)]
    others = [error for error in causes if not isinstance(error, UserError)]
    if others or not causes:
        return next(iter([*others, *met]), None)
    texts = {error.problems: error for error in causes if isinstance(error, UserError)}
    if len(texts) == 1:
        return causes[0]
    return UserError(dict.fromkeys(problem for problems in texts for problem in problems))


def refuse(recipe: Recipe, devices: int | None, parallel: str) -> None:
    """Raise a UserError with all reasons why this process cannot train inline or in threads."""
    in_threads = parallel == "threads"
    given, option = ("parallel", "--parallel threads") if in_threads else ("inline", "--inline")
    problems = _problems_of_threads(recipe, devices) if in_threads else []
    if not in_threads and devices not in (None, 1):
        problems.append(
            f"inline: trains in this process on one device, but {devices} devices were requested; expected "
            "1 device; remove inline or devices (the weights are the same), or add --parallel threads"
        )
    if is_joined():
        problems.append(
            f"{given}: this process already has a process group; destroy it first "
            f"(torch.distributed.destroy_process_group), or remove {given}"
        )
    wanted = instruction_set.variables(recipe.cpu_isa)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        problems.append(
            f"{given}: cpu_isa is '{recipe.cpu_isa}', which must be set before PyTorch is imported; use the "
            f"command rankless train … {option}, or remove {given}"
        )
    if problems:
        raise UserError(problems)


class _Interrupts(Requests):
    """Passes signals on to the training loop, and raises KeyboardInterrupt after a second Ctrl-C."""

    def __init__(self, stop: StopRequest) -> None:
        super().__init__()
        self.stop = stop

    def _note(self, number: int, frame: object) -> None:
        super()._note(number, frame)
        self.stop.signal = self.stop.signal or number
        if self.hurry and number == signal.SIGINT:
            raise KeyboardInterrupt


def train(job: Job, ranks: int | None = None) -> tuple[bool, int]:
    """Train in ``ranks`` threads of this process, or in the calling thread if ``ranks`` is None.

    Return whether all steps are done, and the number of the signal that stopped the training, or 0. PyTorch's
    settings and random state are restored.
    """
    recipe, stop = from_json(job.recipe), StopRequest()
    cards = [torch.cuda.current_device()] if compute_device().type == "cuda" else []
    if cards and ranks:
        cards = list(range(ranks))
    try:
        with kept_generators(), _Interrupts(stop), torch.random.fork_rng(cards), computes_like(recipe):
            if ranks:
                finished = _train_in_threads(job, recipe, ranks, stop)
            else:
                with join(inline=True) as world:
                    finished = rank_job.train(job, recipe, world, stop)
    except LoaderDiedError as error:
        again = f"{RunDirectory(Path(job.run)).again} {'--parallel threads' if ranks else '--inline'}"
        raise UserError(f"{error}; continue from the newest checkpoint with: {again}") from error
    except UserError as error:
        raise _with_advice(error, job) from error
    except Exception as error:
        if known := rank_job.understood(error):
            raise _with_advice(known, job) from error
        raise
    return finished, 0 if finished else stop.signal or signal.SIGTERM


def _with_advice(error: UserError, job: Job) -> UserError:
    return error_in([rank_job.note_of(error, job)]) or error
