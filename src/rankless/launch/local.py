"""Jobs on this machine: how many ranks, one run per directory, and what is printed at the end."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from rankless.arguments import Text, several
from rankless.data.path_checks import refuse_gone
from rankless.errors import INTERRUPTED, UserError, counted, one_of, remedy
from rankless.files.numbered import given_or_numbered
from rankless.hardware.instruction_set import refuse_unable
from rankless.launch import environments, fork_server
from rankless.launch.devices import visible
from rankless.launch.fork_server import ForkServer
from rankless.launch.inline import refuse as refuse_inline
from rankless.launch.inline import train as train_inline
from rankless.launch.job import Job, job_folder, write_job
from rankless.launch.opening import (
    cards,
    checked,
    device,
    devices_here,
    is_finished,
    opened,
    report,
    training_job,
    with_precision,
)
from rankless.launch.ranks import Ranks, saved_step
from rankless.launch.record import record_death, record_error
from rankless.launch.requests import Requests
from rankless.launch.sharing import refuse_idle, too_few
from rankless.launch.supervisor import GRACE, Progress, RoundEnd, supervise, where_from
from rankless.launch.threads import PARALLEL
from rankless.printing import say, warn
from rankless.recipe.load import dump, from_json, load, to_json
from rankless.recipe.schema import IN_RECIPE, Recipe
from rankless.recipe.used import refuse_unused_in_scoring
from rankless.runs import journal
from rankless.runs.directory import RunDirectory, weights_of
from rankless.tasks import resolve_recipe, trained
from rankless.tasks.custom import BUILT_IN, absolute, name_of, refuse_unasked


def train(
    recipe: Recipe,
    run: Path | str | None = None,
    *,
    task: type | str | None = None,
    devices: int | Sequence[int] | None = None,
    resume: bool = False,
    sinks: Sequence[type | str] = (),
    dry_run_steps: int = 0,
    traces: Path | None = None,
    inline: bool = False,
    parallel: str = "processes",
) -> int:
    """Train on this machine and print how it went.

    Args:
        recipe: ``precision: auto`` is resolved here.
        run: the run directory; None makes a new one, runs/TASK or TASK-2, -3 … (the command knows the name
            of the recipe and makes runs/RECIPE).
        task: a task of your own, in place of ``recipe.task``: its class, defined in a module or in a
            script, or its name, ``package.module:Class`` or ``file.py:Class``.
        devices: ranks; None is every GPU, or without one a rank per core (at most one per micro-batch). A
            list names GPUs by their numbers, as PyTorch counts them.
        resume: go on in ``run``.
        sinks: ``csv``, ``tensorboard``, ``mlflow``, ``wandb``, and observers of your own
            (:class:`rankless.Sink`): classes, or names as for ``task``. They live in the process of rank 0;
            one that raises is reported and dropped, and the training goes on.
        dry_run_steps: end after so many steps (``rankless verify``), with nothing printed.
        traces: a folder where the ranks of a dry run leave their traces; None writes none.
        inline: train in this very process, on one device: for breakpoints, profilers and notebooks. A first
            Ctrl-C saves and ends the training, a second one interrupts it.
        parallel: what the ranks are: ``processes``, or ``threads`` of this very process, which exchange in
            memory. The weights are the same.

    Returns:
        The exit code: 0, 85 when it was asked to stop and saved, 130 after Ctrl-C, 1 when it could not go on.

    Raises:
        UserError: whatever is the user's to fix; a TaskError where the task's own code failed.
    """
    environments.refuse("rankless.train", "start the ranks with: torchrun … -m rankless train")
    recipe, names = checked(recipe, task, sinks)
    if parallel not in PARALLEL:
        raise UserError(f"parallel is {parallel!r}: expected {one_of(PARALLEL)}")
    in_threads = parallel == "threads"
    name, given = recipe.task.rpartition(":")[2].lower(), Path(run) if run else None
    with given_or_numbered(given, Path("runs", name), "--run") as path, visible(devices) as wanted:
        directory = RunDirectory(path)
        if inline or in_threads:
            refuse_inline(recipe, wanted, parallel)
        recipe = resolve_recipe(recipe)
        ranks = 1 if inline and not in_threads else ranks_for(wanted, recipe)
        with opened(directory, recipe, resume=resume) as recipe:
            if resume and is_finished(directory, recipe):
                return 0
            job = training_job(
                recipe, directory, names, dry_run_steps=dry_run_steps, traced=traces is not None
            )
            try:
                if inline or in_threads:
                    finished, number = train_inline(job, ranks if in_threads else None)
                else:
                    end = _run(job, ranks, traces)
                    finished, number = bool(end.note.get("finished")), end.stopped_by
            except UserError as error:
                record_error(directory, error.problems)
                raise
            return report(finished, number, directory, quiet=bool(dry_run_steps))


def evaluate(
    target: Text,
    overrides: str | Sequence[str] = (),
    *,
    task: type | str | None = None,
    devices: int | Sequence[int] | None = None,
    split: str | None = None,
) -> dict[str, Any]:
    """Score weights on the data of their recipe.

    Args:
        target: a run directory or a weights file.
        overrides: changes to the recipe, such as ``data.root=…`` or ``evaluate.iou=0.5``.
        task: a task of your own, as for :func:`train`. One that only the weights' recipe names is not run:
            a file decides nothing about what code runs.
        devices: as for :func:`train`.
        split: the split to score; None is the recipe's ``data.val``.

    Returns:
        The scores, with ``weights`` naming the file, ``images`` counting the images of the evaluation data,
        and, of a built-in task, ``data`` and ``split`` saying which they are.

    Raises:
        UserError: whatever is the user's to fix, such as weights of a task that is not built in when no
            ``task`` is given.
    """
    path, overrides = weights_of(Path(target)), several(overrides)
    loaded = trained.load(path)
    if task is not None:
        overrides = [*overrides, f"task={json.dumps(absolute(name_of(task)))}"]
    if not any(override.startswith("task=") for override in overrides):
        refuse_unasked(loaded.recipe.task, path)
    with visible(devices) as wanted, tempfile.TemporaryDirectory(prefix="rankless-") as folder:
        text = Path(folder) / "recipe.yaml"
        text.write_text(dump(loaded.recipe), encoding="utf-8")
        refuse_unused_in_scoring(overrides, loaded.recipe.task)
        recipe = load(text, [*overrides, *([f"data.val={split}"] if split else [])])
        refuse_unable(recipe.cpu_isa)
        if recipe.data.val == "none":
            raise UserError(
                f"{path}: it was trained with data.val=none; give the split to score: --split NAME"
            )
        if recipe.task in BUILT_IN:
            refuse_gone(recipe.data.root, loaded.recipe.data.root, path)
        recipe, ranks = with_precision(recipe), ranks_for(wanted, None)
        with _split_is_an_option(split):
            note = (end := _run(Job("evaluate", to_json(recipe), folder, weights=str(path)), ranks)).note
    if "scores" not in note:
        if end.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise UserError(note.get("problems", ["the evaluation was stopped before its end"]))
    for sentence in note.get("notes", ()):
        say(sentence, file=sys.stderr)
    for sentence in note.get("warnings", ()):
        warn(sentence)
    scored = {"data": recipe.data.root, "split": recipe.data.val} if recipe.task in BUILT_IN else {}
    return {"weights": str(path), **scored, "images": note["images"], **note["scores"]}


def step_seconds(recipe: Recipe, devices: int, steps: int, warm_up: int) -> list[float]:
    """Train some steps, of which nothing stays, and return how long each took after the first few.

    Args:
        recipe: any.
        devices: ranks that share it.
        steps: how many are trained.
        warm_up: so many do not count.

    Raises:
        UserError: whatever keeps the recipe from training.
    """
    with tempfile.TemporaryDirectory(prefix="rankless-steps-") as folder:
        run = RunDirectory(Path(folder) / "run")
        code = train(recipe, run.path, devices=devices, dry_run_steps=steps)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        seconds = [] if code else journal.step_seconds(run.journal)
    if not seconds:
        what = f"the first steps with {counted(devices, 'device')}"
        raise UserError(f"{what} did not get to the end (code {code}); see that the recipe trains here")
    return seconds[warm_up:] or seconds


@contextmanager
def _split_is_an_option(split: str | None) -> Iterator[None]:
    """Inside, an error that there is no such split names the option, not the recipe."""
    try:
        yield
    except UserError as error:
        missing = f"no split '{split}'"
        if split is None or not any(missing in problem for problem in error.problems):
            raise
        raise UserError(
            f"split '{split}': {problem.replace(IN_RECIPE, '')}" if missing in problem else problem
            for problem in error.problems
        ) from error


@contextmanager
def job_written(job: Job, traces: Path | None, first: int = 0) -> Iterator[Path]:
    """The job's path, in ``traces`` or a private folder; ``first`` is the number of the first rank here."""
    with ExitStack() as stack:
        try:
            folder = traces or stack.enter_context(job_folder(Path(job.run) if job.run else None, first))
            job_path = write_job(job, folder)
        except OSError as error:
            raise UserError(f"the job for the ranks cannot be written ({error}); {remedy(error)}") from error
        yield job_path


class _ThisMachine:
    """The hosts of a job whose ranks all run on this machine.

    Args:
        job: what they do.
        path: the file with the job.
        ranks: how many.
        requests: the signals that this process gets.
    """

    def __init__(self, job: Job, path: Path, ranks: int, requests: Requests) -> None:
        self.job, self.path, self.ranks, self.requests = job, path, ranks, requests
        self.progress = Progress(saved_step(job))

    def rounds(self) -> Iterator[RoundEnd]:
        server = server_for(self.job)
        grace = GRACE if self.job.verb == "train" else 0.0  # an evaluation has nothing to save
        for number in count(1):
            end = Ranks(
                self.job, self.path, self.ranks, self.requests, server, grace=grace, number=number
            ).run()
            server = server if server and server.alive else None
            yield end

    def record(self, end: RoundEnd) -> None:
        self.progress.count(end.step)
        for death in end.deaths if self.job.run else ():
            record_death(RunDirectory(Path(self.job.run)), death)

    def resumes(self, _: RoundEnd) -> str:
        return where_from(self.progress.step)


def run_ranks(job: Job, path: Path, ranks: int) -> RoundEnd:
    """Run a job's ranks on this machine until they are done; how the last round ended."""
    with Requests() as requests:
        return supervise(_ThisMachine(job, path, ranks, requests)) or RoundEnd()


def _run(job: Job, ranks: int, traces: Path | None = None) -> RoundEnd:
    """Run the ranks until they are done; raises the error that they met."""
    with job_written(job, traces) as path:
        end = run_ranks(job, path, ranks)
    if sys.stdout.isatty():
        print("\x1b[?25h", end="", flush=True)  # a rank that was killed left the cursor hidden
    if end.error:
        raise end.error
    return end


def server_for(job: Job) -> ForkServer | None:
    """What can fork the ranks, if they compute on the CPU, with the libraries as this process loaded them."""
    native = from_json(job.recipe).cpu_isa == "native"
    return fork_server.running() if native and device().type == "cpu" else None


def ranks_for(devices: int | None, recipe: Recipe | None) -> int:
    """How many ranks to start."""
    if devices is None:
        devices = devices_here(recipe.threads if recipe else 1)
        if recipe and devices > (most := recipe.batch.micro_batches):
            kind = "GPUs here" if cards() else "processes possible here"
            say(too_few(most, devices, kind), file=sys.stderr)
            return most
        return devices
    if devices < 1:
        raise UserError(f"--devices is {devices}: expected a whole number of at least 1, or 'auto'")
    if recipe:
        refuse_idle("--devices is {}", [devices], recipe)
    return devices
