"""Steps that all launchers share: checks, the run directory, reports and journal entries."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from rankless.engine.sinks.sink import sink_class
from rankless.errors import INTERRUPTED, STOPPED, UserError, counted, remedy, shell_word
from rankless.files.writing import write_atomically
from rankless.hardware.compute_device import compute_device
from rankless.hardware.cores import usable_cores
from rankless.hardware.instruction_set import refuse_unable
from rankless.hardware.precision import resolve
from rankless.launch.job import Job
from rankless.launch.resume import check_resume, finished_at
from rankless.launch.rounds import Death
from rankless.launch.run_lock import locked
from rankless.printing import discard_output, print_best, say
from rankless.recipe.load import dump, load, to_json
from rankless.recipe.schema import Recipe
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.task_kinds import BUILT_IN
from rankless.tasks.custom import naming, own_code, with_absolute_names
from rankless.user_modules import absolute, name_of, refuse_while_opening


def checked(recipe: Recipe, task: type | str | None, sinks: Sequence[type | str]) -> tuple[Recipe, list[str]]:
    """Check the task, the sinks and the instruction set.

    Return the recipe with the full names of the user's own code, and the names of the sinks.
    """
    refuse_while_opening()
    if not isinstance(recipe, Recipe):
        raise UserError(
            f"recipe is {recipe!r:.80}; expected a Recipe, as returned by rankless.load_recipe('digits')"
        )
    refuse_unable(recipe.cpu_isa)
    names = [absolute(name_of(sink, "sink")) for sink in sinks]
    for name in names:
        sink_class(name)  # raises errors before anything is created
    return with_absolute_names(replace(recipe, task=name_of(task or recipe.task))), names


@contextmanager
def opened(run: RunDirectory, recipe: Recipe, *, resume: bool, token: str = "") -> Iterator[Recipe]:
    """Lock a run directory, and yield the recipe with its precision resolved.

    Raise a UserError if another process is training there, or if the directory contains other files or
    another recipe.
    """
    with locked(run, resume, token):
        recipe = with_precision(check_resume(run, recipe) if resume else recipe)
        if not resume:  # a resumed run writes its recipe after all checks
            begin(run, recipe)
        yield recipe


def begin(run: RunDirectory, recipe: Recipe) -> None:
    """Write the recipe of a new run and an empty list of starts."""
    try:
        write_atomically(run.recipe, dump(recipe))
        write_atomically(run.environment, "[]\n")  # rank 0 adds its hardware and versions
    except OSError as error:
        message = f"{run.path}: cannot be written ({error}); {remedy(error)}, or use another --run"
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
    """Return a training job; ``launched`` is added to the record of this start."""
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
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
    }


def report(finished: bool, number: int | None, run: RunDirectory, *, quiet: bool = False) -> int:
    """Print how a run ended, and return the exit code; if ``quiet``, print only errors."""
    again = run.again
    if finished:
        if not quiet:
            report_finished(run)
        return 0
    if number and quiet:  # the run directory will be removed
        return INTERRUPTED if number == signal.SIGINT else STOPPED
    if number:
        return report_stopped(signal.Signals(number), run.pointed("last"), again)
    say(f"error: the ranks could not continue; see {run.logs}, then run: {again}", file=sys.stderr)
    return 1


def report_stopped(by: signal.Signals, step: int | None, again: str, *, known: bool = True) -> int:
    """Print which signal stopped a run, what was saved and how to continue, and return the exit code."""
    saved = f"saved after step {step}" if step else "nothing was saved yet"
    saved = saved if known else "the newest checkpoint, if any, is on the lost hosts"
    say(f"stopped by {by.name}; {saved}; continue with: {again}", file=sys.stderr)
    return INTERRUPTED if by is signal.SIGINT else STOPPED


def report_nothing_left(run: Path, step: int, epochs: int, again: str) -> None:
    """Print that the run to resume is finished, and how to extend it."""
    say(
        f"{run}: this run is finished (step {step} of {step}); to train for more than "
        f"{counted(epochs, 'epoch')}, run: {again} epochs={2 * epochs}"
    )


@contextmanager
def _optional_output(run: RunDirectory) -> Iterator[None]:
    """Warn instead of raising an error if standard output cannot be written: the run is already saved."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output(sys.stdout)
        say(
            f"warning: the run is finished and saved in {run.path}, but the output could not be written "
            f"({error.strerror or error})",
            file=sys.stderr,
        )


def report_finished(run: RunDirectory) -> None:
    """Print the best scores of a finished run, its files, and a command to run next."""
    scores = [entry for entry in journal.read(run.journal) if "evaluation" in entry]
    best, recipe = run.pointed("best"), load(run.recipe)
    following = f"rankless predict {shell_word(run.path)} IMAGES"
    if recipe.task not in BUILT_IN:  # predict does not support custom tasks
        following = f"rankless evaluate {shell_word(run.path)}"
    following += "".join(f" {naming(*one)}" for one in own_code(recipe) if one[0] != "data.format")
    with _optional_output(run):
        for entry in scores:
            if best is not None and entry["evaluation"] == best:
                print_best(best, entry["scores"])
        say(f"run directory: {run.path}")
        files = [run.path / f"{name}.safetensors" for name in ("best", "last")]
        if there := [str(file) for file in files if file.is_file()]:
            say(f"weights: {', '.join(there)}")
        say(f"next: {following}")


def is_finished(run: RunDirectory, recipe: Recipe) -> bool:
    """Check whether the run to resume is finished; if so, print a message."""
    step = finished_at(run, recipe)
    if step:
        report_nothing_left(run.path, step, recipe.epochs, run.again)
    return bool(step)


def gpu_count() -> int:
    """Return the number of GPUs that the ranks may use."""
    return torch.cuda.device_count() if compute_device().type == "cuda" else 0


def devices_here(threads: int) -> int:
    """Return the default number of ranks: one per GPU or, without GPUs, one per ``threads`` cores."""
    return gpu_count() or max(usable_cores() // threads, 1)


def with_precision(recipe: Recipe) -> Recipe:
    """Return the recipe with ``precision: auto`` resolved for this machine."""
    return replace(recipe, precision=resolve(recipe.precision, compute_device(), recipe.cpu_isa))


def record_death(run: RunDirectory, death: Death) -> None:
    """Record the death of a rank in the run's journal. No rank may be using the journal at the time."""
    how = {"signal": signal.Signals(-death.code).name} if death.code < 0 else {"code": death.code}
    who = {} if death.rank is None else {"rank": death.rank}
    _append(run, {"event": "death", "at": _step(run), **who, **how, "text": death.text})


def record_error(run: RunDirectory, errors: Sequence[str]) -> None:
    """Add the error that ended a run to its journal and report, if the run had started."""
    if run.journal.exists():
        _append(run, {"event": "error", "at": _step(run), "text": "\n".join(errors)})
        if run.report.exists():  # rank 0 wrote the report without the error
            from rankless.report import page
            from rankless.report.collected import Collected

            with suppress(UserError, OSError):
                page.write([Collected(run.path).refresh()], run.report)


def _step(run: RunDirectory) -> int:
    try:
        return journal.last_step(run.journal)
    except OSError:
        return 0


def _append(run: RunDirectory, entry: dict[str, object]) -> None:
    with suppress(OSError):  # a full disk may be the cause
        journal.append(run.journal, **entry, timing={"time": round(time.time(), 1)})
