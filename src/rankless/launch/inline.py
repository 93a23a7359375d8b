"""Training in the current process, as the only rank or with a thread per rank: for breakpoints and notebooks.

Unlike with Rankless's launcher, a dead rank is not restarted, and the output of libraries goes to the
terminal.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rankless.data.loader import LoaderDiedError
from rankless.engine.loop import StopRequest
from rankless.engine.settings import computes_like
from rankless.errors import UserError
from rankless.hardware import instruction_set
from rankless.launch import rank_job, threads
from rankless.launch.job import Job, error_in
from rankless.launch.opening import device
from rankless.launch.requests import Requests
from rankless.recipe.load import from_json
from rankless.recipe.schema import Recipe
from rankless.world.process_group import is_joined, join


def refuse(recipe: Recipe, devices: int | None, parallel: str) -> None:
    """Raise a UserError with all reasons why this process cannot train inline or in threads."""
    in_threads = parallel == "threads"
    given, option = ("parallel", "--parallel threads") if in_threads else ("inline", "--inline")
    problems = threads.problems(recipe, devices) if in_threads else []
    if not in_threads and devices not in (None, 1):
        problems.append(
            f"inline: trains in this process, on one device, and {devices} devices are asked for; expected "
            "1: leave either out (the weights are the same), or add --parallel threads"
        )
    if is_joined():
        problems.append(
            f"{given}: this process already has a process group; destroy it first "
            f"(torch.distributed.destroy_process_group), or leave {given} out"
        )
    wanted = instruction_set.variables(recipe.cpu_isa)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        problems.append(
            f"{given}: cpu_isa is '{recipe.cpu_isa}', which has to be chosen before PyTorch is imported, as "
            f"the command does: use rankless train … {option}, or leave {given} out"
        )
    if problems:
        raise UserError(problems)


class _Interrupts(Requests):
    """Signals that stop the training loop; a second Ctrl-C raises KeyboardInterrupt."""

    def __init__(self, stop: StopRequest) -> None:
        super().__init__()
        self.stop = stop

    def _note(self, number: int, frame: object) -> None:
        super()._note(number, frame)
        self.stop.signal = self.stop.signal or number
        if self.hurry and number == signal.SIGINT:
            raise KeyboardInterrupt


@contextmanager
def _python_rng_left_alone() -> Iterator[None]:
    """Restore the state of Python's random generator, which some libraries use when first imported."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


def train(job: Job, ranks: int | None = None) -> tuple[bool, int]:
    """Train in ``ranks`` threads of this process, or in the calling thread if None.

    PyTorch's settings and random state are restored afterwards.

    Returns:
        Whether all steps are done, and the number of the signal that ended the training (0 if none did).
    """
    recipe, stop = from_json(job.recipe), StopRequest()
    cards = [torch.cuda.current_device()] if device().type == "cuda" else []
    if cards and ranks:
        cards = list(range(ranks))
    try:
        with (
            _Interrupts(stop),
            torch.random.fork_rng(cards),
            _python_rng_left_alone(),
            computes_like(recipe),
        ):
            finished = threads.train(job, recipe, ranks, stop) if ranks else _alone(job, recipe, stop)
    except LoaderDiedError as error:
        again = f"rankless train --resume --run {job.run} {'--parallel threads' if ranks else '--inline'}"
        raise UserError(
            f"a loader process {error}; continue from the newest checkpoint with: {again}"
        ) from error
    except UserError as error:
        raise _advised(error, job) from error
    except Exception as error:
        if known := rank_job.understood(error):
            raise _advised(known, job) from error
        raise
    return finished, 0 if finished else stop.signal or signal.SIGTERM


def _alone(job: Job, recipe: Recipe, stop: StopRequest) -> bool:
    with join(inline=True) as world:
        return rank_job.train(job, recipe, world, stop)


def _advised(error: UserError, job: Job) -> UserError:
    """Return the error with the advice that a launched rank would add."""
    return error_in([rank_job.note_of(error, job)]) or error
