"""Train and evaluate with ranks on this machine."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from rankless.arguments import Text, several
from rankless.data.path_checks import refuse_gone
from rankless.errors import INTERRUPTED, UserError, counted, listed, remedy
from rankless.files.numbered import given_or_numbered
from rankless.hardware.compute_device import compute_device
from rankless.hardware.forking import ForkServer
from rankless.hardware.instruction_set import refuse_unable
from rankless.launch import environments, fork_server
from rankless.launch.devices import LeftOut, visible
from rankless.launch.inline import refuse as refuse_inline
from rankless.launch.inline import train as train_inline
from rankless.launch.job import DRY_RUN_IMAGES, Job, check_parallel, job_folder, write_job
from rankless.launch.opening import (
    checked,
    devices_here,
    gpu_count,
    is_finished,
    opened,
    record_death,
    record_error,
    report,
    training_job,
    with_precision,
)
from rankless.launch.ranks import Ranks, saved_step
from rankless.launch.requests import Requests
from rankless.launch.rounds import GRACE, Progress, RoundEnd, supervise, where_from
from rankless.launch.sharing import refuse_idle, too_few
from rankless.models.published import prefetch
from rankless.printing import is_notebook, say, warn
from rankless.recipe.load import dump, from_json, load, to_json
from rankless.recipe.schema import IN_RECIPE, Recipe
from rankless.recipe.used import refuse_unused_in_scoring
from rankless.runs import journal
from rankless.runs.directory import RunDirectory, weights_of
from rankless.task_kinds import BUILT_IN
from rankless.tasks import resolve_recipe, split_names, trained
from rankless.tasks.custom import refuse_unasked, with_absolute_names
from rankless.user_modules import absolute, name_of


def train(
    recipe: Recipe,
    run: Path | str | None = None,
    *,
    task: type | str | None = None,
    devices: int | Sequence[int] | None = None,
    resume: bool = False,
    sinks: Sequence[type | str] = (),
    dry_run_steps: int = 0,
    dry_run_images: int = DRY_RUN_IMAGES,
    traces: Path | None = None,
    inline: bool = False,
    parallel: str = "processes",
) -> int:
    """Train on this machine and print the outcome.

    Args:
        recipe: the recipe; ``precision: auto`` is resolved on this machine.
        run: the run directory. By default, a new directory ``runs/TASK`` is created, or ``runs/TASK-2``,
            ``-3`` and so on if that exists.
        task: a custom task instead of ``recipe.task``, given as a class in a module or script, or as a name
            (``package.module:Class`` or ``file.py:Class``).
        devices: the number of ranks, or a list of GPU numbers as PyTorch counts them. By default, there is a
            rank per GPU or, without GPUs, per ``threads`` cores, but at most one rank per micro-batch.
        resume: whether to continue the run in ``run``.
        sinks: ``csv``, ``tensorboard``, ``mlflow``, ``wandb``, or custom observers (:class:`rankless.Sink`),
            each given as a class or a name as for ``task``. They run in the process of rank 0. A sink that
            raises an error is reported and disabled, and the training continues.
        dry_run_steps: the number of steps of a dry run, which prints nothing (``rankless verify``); 0 for a
            real run.
        dry_run_images: the number of images per evaluation of a dry run; 0 evaluates nothing.
        traces: a folder for the traces of a dry run. By default, no traces are written.
        inline: whether to train on one device in the current process, for breakpoints, profilers and
            notebooks. The first Ctrl-C saves and ends the training; a second one interrupts it.
        parallel: ``processes``, or ``threads`` of the current process, which exchange data in memory. The
            weights are the same.

    Returns:
        The exit code: 0 if the training finished, 85 if a signal stopped it and the run was saved, 130 after
        Ctrl-C, and 1 if the ranks could not continue.

    Raises:
        UserError: an error that the user can fix, or a TaskError if the task's own code failed.
    """
    environments.refuse("rankless.train", "start the ranks with: torchrun … -m rankless train")
    recipe, names = checked(recipe, task, sinks)
    check_parallel(parallel)
    in_threads = parallel == "threads"
    name, given = recipe.task.rpartition(":")[2].lower(), Path(run) if run else None
    with given_or_numbered(given, Path("runs", name), "--run") as path, visible(devices) as wanted:
        directory = RunDirectory(path)
        if inline or in_threads:
            refuse_inline(recipe, wanted, parallel)
        recipe = resolve_recipe(recipe)
        if not resume:
            prefetch(recipe.model)
        ranks = 1 if inline and not in_threads else ranks_for(wanted, recipe, may_share=bool(dry_run_steps))
        with opened(directory, recipe, resume=resume) as recipe:
            if resume and is_finished(directory, recipe):
                return 0
            job = training_job(
                recipe, directory, names, dry_run_steps=dry_run_steps, traced=traces is not None
            )
            job = replace(job, dry_run_images=dry_run_images)
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
    """Evaluate weights on the evaluation data of their recipe.

    Args:
        target: a run directory or a weights file.
        overrides: changes to the recipe, such as ``data.root=…`` or ``evaluate.iou=0.5``.
        task: a custom task, as for :func:`train`. It must be given even if the weights name it, because a
            file must not decide which code runs.
        devices: as for :func:`train`.
        split: the split to evaluate, by default the recipe's ``data.val``.

    Returns:
        The scores by name, the path of the weights file (``weights``), the number of images (``images``) and,
        for a built-in task, the path of the data and the name of the split (``data`` and ``split``).

    Raises:
        UserError: an error that the user can fix, such as weights of a custom task without ``task``.
    """
    path, overrides = weights_of(Path(target)), several(overrides)
    loaded = trained.load(path)
    if task is not None:
        overrides = [*overrides, f"task={json.dumps(absolute(name_of(task)))}"]
    with visible(devices) as wanted, tempfile.TemporaryDirectory(prefix="rankless-") as folder:
        text = Path(folder) / "recipe.yaml"
        text.write_text(dump(loaded.recipe), encoding="utf-8")
        refuse_unused_in_scoring(overrides, loaded.recipe.task)
        recipe = load(text, [*overrides, *([f"data.val={split}"] if split else [])])
        refuse_unasked(recipe, path, overrides)
        recipe = with_absolute_names(recipe)
        refuse_unable(recipe.cpu_isa)
        if recipe.task in BUILT_IN:
            refuse_gone(recipe.data.root, loaded.recipe.data.root, path)
        if recipe.data.val == "none":
            names = split_names(recipe)
            raise UserError(
                f"{path}: was trained with data.val=none; choose the split to evaluate with --split "
                f"{names[-1] if names else 'NAME'}{f' (there is {listed(names)})' if names else ''}"
            )
        recipe, ranks = with_precision(recipe), ranks_for(wanted, None)
        with _split_errors(split):
            note = (end := _run(Job("evaluate", to_json(recipe), folder, weights=str(path)), ranks)).note
    if "scores" not in note:
        if end.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise UserError(note.get("problems", ["the evaluation was stopped before it finished"]))
    for sentence in note.get("notes", ()):
        say(sentence, file=sys.stderr)
    for sentence in note.get("warnings", ()):
        warn(sentence)
    scored = {"data": recipe.data.root, "split": recipe.data.val} if recipe.task in BUILT_IN else {}
    return {"weights": str(path), **scored, "images": note["images"], **note["scores"]}


def step_seconds(recipe: Recipe, devices: int, steps: int, warm_up: int) -> list[float]:
    """Train ``steps`` steps in a temporary run, and return the seconds of each step after the warm-up."""
    with tempfile.TemporaryDirectory(prefix="rankless-steps-") as folder:
        run = RunDirectory(Path(folder) / "run")
        code = train(recipe, run.path, devices=devices, dry_run_steps=steps)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        seconds = [] if code else journal.step_seconds(run.journal)
    if not seconds:
        what = f"the first steps with {counted(devices, 'device')}"
        raise UserError(
            f"{what} did not finish (exit code {code}); check that the recipe trains on this machine"
        )
    return seconds[warm_up:] or seconds


@contextmanager
def _split_errors(split: str | None) -> Iterator[None]:
    """Make errors about a missing split refer to the option ``split`` instead of the recipe."""
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
def job_file(job: Job, traces: Path | None, first: int = 0) -> Iterator[Path]:
    """Write a job into ``traces``, by default a private folder, and yield the file's path."""
    with ExitStack() as stack:
        try:
            folder = traces or stack.enter_context(job_folder(Path(job.run) if job.run else None, first))
            job_path = write_job(job, folder)
        except OSError as error:
            raise UserError(f"the job for the ranks cannot be written ({error}); {remedy(error)}") from error
        yield job_path


class _ThisMachine:
    def __init__(self, job: Job, path: Path, ranks: int, requests: Requests) -> None:
        self.job, self.path, self.ranks, self.requests = job, path, ranks, requests
        self.progress = Progress(saved_step(job))

    def rounds(self) -> Iterator[RoundEnd]:
        server = server_for(self.job)
        grace = GRACE if self.job.verb == "train" else 0.0  # an evaluation has nothing to save
        left_out = LeftOut()
        for number in count(1):
            end = Ranks(
                self.job,
                self.path,
                self.ranks - len(left_out.numbers),
                self.requests,
                server,
                grace=grace,
                number=number,
                more=left_out.variables(),
            ).run()
            left_out.add(end.left_out)
            server = server if server and server.alive else None
            yield end

    def record(self, end: RoundEnd) -> None:
        self.progress.count(end.step)
        for death in end.deaths if self.job.run else ():
            record_death(RunDirectory(Path(self.job.run)), death)

    def resumes(self, _: RoundEnd) -> str:
        return where_from(self.progress.step)


def run_ranks(job: Job, path: Path, ranks: int) -> RoundEnd:
    """Run the ranks of a job on this machine, and return the outcome of the last round."""
    with Requests() as requests:
        return supervise(_ThisMachine(job, path, ranks, requests)) or RoundEnd()


def _run(job: Job, ranks: int, traces: Path | None = None) -> RoundEnd:
    with job_file(job, traces) as path:
        end = run_ranks(job, path, ranks)
    if sys.stdout.isatty() and not is_notebook():
        print("\x1b[?25h", end="", flush=True)  # a killed rank may have left the cursor hidden
    if end.error:
        raise end.error
    return end


def server_for(job: Job) -> ForkServer | None:
    """Return the fork server if it can fork the job's ranks, otherwise None."""
    native = from_json(job.recipe).cpu_isa == "native"
    return fork_server.running() if native and compute_device().type == "cpu" else None


def ranks_for(devices: int | None, recipe: Recipe | None, *, may_share: bool = False) -> int:
    """Return the number of ranks to start on this machine.

    Only with ``may_share``, as in a dry run that compares bits, may several ranks use one GPU.
    """
    if devices is None:
        devices = devices_here(recipe.threads if recipe else 1)
        if recipe and devices > (most := recipe.batch.micro_batches):
            kind = "GPUs" if gpu_count() else "possible processes"
            say(too_few(most, devices, kind), file=sys.stderr)
            return most
        return devices
    if devices < 1:
        raise UserError(f"--devices is {devices}: expected a whole number of at least 1, or 'auto'")
    if recipe:
        refuse_idle("--devices is {}", [devices], recipe)
    there = gpu_count()
    if devices > there > 0 and not may_share:
        raise UserError(
            f"--devices is {devices}, but there {'is' if there == 1 else 'are'} {counted(there, 'GPU')}; "
            f"expected at most one rank per GPU; use --devices {there}, which gives the same weights, or "
            f"--device cpu to train with {counted(devices, 'process', 'processes')} on the CPU"
        )
    return devices
