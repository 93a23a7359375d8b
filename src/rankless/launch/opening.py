"""What every start of a training checks, opens and reports, whoever starts its ranks."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from rankless.engine.sinks.sink import sink_class
from rankless.errors import INTERRUPTED, STOPPED, UserError, remedy
from rankless.files.writing import write_atomically
from rankless.hardware.compute_device import compute_device
from rankless.hardware.cores import usable_cores
from rankless.hardware.instruction_set import refuse_unable
from rankless.hardware.precision import resolve
from rankless.launch.job import Job
from rankless.launch.resume import check_resume, finished_at
from rankless.launch.run_lock import locked
from rankless.printing import discard_output, print_best, say
from rankless.recipe.load import dump, load, to_json
from rankless.recipe.schema import Recipe
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.tasks.custom import BUILT_IN, absolute, name_of, refuse_while_opening


def checked(recipe: Recipe, task: type | str | None, sinks: Sequence[type | str]) -> tuple[Recipe, list[str]]:
    """Check what was asked for before anything is made.

    Returns:
        The recipe with its task's full name, and the names of the sinks.

    Raises:
        UserError: no recipe, no such task or sink, or an instruction set that this processor lacks.
    """
    refuse_while_opening()
    _refuse_other_than_recipes(recipe)
    refuse_unable(recipe.cpu_isa)
    names = [absolute(name_of(sink, "sink")) for sink in sinks]
    for name in names:
        sink_class(name)  # its errors show before anything is made
    return replace(recipe, task=absolute(name_of(task or recipe.task))), names


def _refuse_other_than_recipes(recipe: object) -> None:
    if not isinstance(recipe, Recipe):
        raise UserError(
            f"recipe is {recipe!r:.80}; expected a Recipe, such as rankless.load_recipe('digits') returns"
        )


@contextmanager
def opened(run: RunDirectory, recipe: Recipe, *, resume: bool, token: str = "") -> Iterator[Recipe]:
    """Hold the lock of a run directory that is ready for the ranks.

    Args:
        run: whose directory.
        recipe: resolved, but for its precision.
        resume: go on in ``run``.
        token: as for :func:`locked`.

    Yields:
        The recipe with its precision resolved.

    Raises:
        UserError: another process trains there, it is not a run's, or its recipe is another.
    """
    with locked(run, resume, token):
        recipe = with_precision(check_resume(run, recipe) if resume else recipe)
        if not resume:  # a run that goes on writes it when everything has been checked
            begin(run, recipe)
        yield recipe


def begin(run: RunDirectory, recipe: Recipe) -> None:
    """Write down what a run begins with.

    Raises:
        UserError: it cannot be written.
    """
    try:
        write_atomically(run.recipe, dump(recipe))
        write_atomically(run.environment, "[]\n")  # rank 0 records what it computes with
    except OSError as error:
        message = f"{run.path}: cannot be written ({error}); {remedy(error)}, or give another --run"
        raise UserError(message) from error


def training_job(
    recipe: Recipe,
    run: RunDirectory,
    sinks: Sequence[str],
    *,
    dry_run_steps: int = 0,
    traced: bool = False,
    launched: Mapping[str, Any] | None = None,
) -> Job:
    """The job of training ``recipe``; ``launched`` is added to the record of this start."""
    return Job(
        "train",
        to_json(recipe),
        str(run.logs),
        run=str(run.path),
        sinks=list(sinks),
        dry_run_steps=dry_run_steps,
        traced=traced,
        launched={**this_start(), **(launched or {})},
    )


def this_start() -> dict[str, Any]:
    """When this start was, and with which command."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
    }


def report(finished: bool, number: int | None, run: RunDirectory, *, quiet: bool = False) -> int:
    """Print how a training ended; the exit code.

    Args:
        finished: whether all steps are done.
        number: the signal that ended it, None or 0 if none did.
        run: whose training.
        quiet: print nothing about one that is finished.
    """
    again = f"rankless train --resume --run {run.path}"
    if finished:
        if not quiet:
            report_finished(run)
        return 0
    if number:
        return report_stopped(signal.Signals(number), run.pointed("last"), again)
    say(f"error: the ranks could not go on; look at {run.logs}, then: {again}", file=sys.stderr)
    return 1


def report_stopped(by: signal.Signals, step: int | None, again: str, *, known: bool = True) -> int:
    """Print which signal ended a training, what is saved where that is known, and how to go on; the code."""
    saved = f"saved after step {step}" if step else "nothing was saved yet"
    saved = saved if known else "what was saved is on the hosts that were lost"
    say(f"stopped by {by.name}; {saved}; go on with: {again}", file=sys.stderr)
    return INTERRUPTED if by is signal.SIGINT else STOPPED


def report_nothing_left(run: Path, step: int, epochs: int, again: str) -> None:
    """Print that a run that is to go on is finished, and how it is trained for longer."""
    say(
        f"{run}: this run is finished, at step {step} of {step}; for more, give more epochs than {epochs}: "
        f"{again} epochs={2 * epochs}"
    )


@contextmanager
def _output_is_optional(run: RunDirectory) -> Iterator[None]:
    """Inside, a standard output that cannot be written is reported, and no error: the run is what counts."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output(sys.stdout)
        say(
            f"warning: the run is finished and saved in {run.path}; the output could not be written "
            f"({error.strerror or error})",
            file=sys.stderr,
        )


def report_finished(run: RunDirectory) -> None:
    """Print the best scores of a finished run, and what to do with it."""
    scores = [entry for entry in journal.read(run.journal) if "evaluation" in entry]
    best, following = run.pointed("best"), _next(run)
    with _output_is_optional(run):
        for entry in scores:
            if best is not None and entry["evaluation"] == best:
                print_best(best, entry["scores"])
        say(f"run directory: {run.path}")
        files = [run.path / f"{name}.safetensors" for name in ("best", "last")]
        if there := [str(file) for file in files if file.is_file()]:
            say(f"weights: {', '.join(there)}")
        say(f"next: {following}")


def is_finished(run: RunDirectory, recipe: Recipe) -> bool:
    """Whether a run that is to go on has nothing left to do; prints it."""
    step = finished_at(run, recipe)
    if step:
        report_nothing_left(run.path, step, recipe.epochs, f"rankless train --resume --run {run.path}")
    return bool(step)


def _next(run: RunDirectory) -> str:
    task = load(run.recipe).task
    if task in BUILT_IN:
        return f"rankless predict {run.path} IMAGES"
    return f"rankless evaluate {run.path} --task {shlex.quote(task)}"  # predict knows no such task


def cards() -> int:
    """How many GPUs the ranks may compute on."""
    return torch.cuda.device_count() if device().type == "cuda" else 0


def devices_here(threads: int) -> int:
    """How many ranks this machine can have: one for each GPU, or for as many cores as a rank has threads."""
    return cards() or max(usable_cores() // threads, 1)


def with_precision(recipe: Recipe) -> Recipe:
    """Return the recipe with the precision that ``auto`` means on this machine."""
    return replace(recipe, precision=resolve(recipe.precision, device(), recipe.cpu_isa))


def device() -> torch.device:
    """What the ranks compute on."""
    return compute_device()
