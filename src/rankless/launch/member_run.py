"""The run directory of ranks that a cluster's launcher has started: which one, and whether it goes on."""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rankless.errors import UserError
from rankless.files import writing
from rankless.files.numbered import numbered_folder, removed_on_error
from rankless.launch import environments
from rankless.launch.agreement import on_first, together
from rankless.launch.environments.environment import Environment
from rankless.launch.job import Job
from rankless.launch.opening import is_finished, opened, training_job
from rankless.launch.resume import was_started_by
from rankless.launch.run_lock import locked
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.world.process_group import World


@dataclass(frozen=True)
class Start:
    """What this start was asked for.

    Attributes:
        environment: of this rank.
        run: the run directory; None chooses one.
        name: what to call a new run.
        resume: go on in ``run``.
        sinks: the user's, by their full names.
    """

    environment: Environment
    run: Path | None
    name: str
    resume: bool
    sinks: Sequence[str]


def open_run(world: World, start: Start, recipe: Recipe, held: ExitStack) -> Job | None:
    """Have rank 0 open the run directory, which ``held`` leaves; all ranks call this.

    It goes on where it was asked to, and where a start of the same job has saved, on any machine.

    Returns:
        On rank 0 the job, None where nothing is left to do; None on the others.

    Raises:
        UserError: on every rank: it cannot be used, or another machine has another run there.
    """
    if world.is_first:  # where none is there yet, the folder above it does not stay, either
        held.enter_context(removed_on_error(start.run or Path("runs", start.name)))
    found = on_first(world, lambda: _job_and_path(world, start))
    name, path = world.broadcast((found[0], str(found[1].absolute())) if found else None)
    run = RunDirectory(found[1] if found else Path(path))
    with removed_on_error(run.path) if found else nullcontext():
        mine = (was_started_by(run, name), bool(run.steps()), platform.node())
        every = world.all_gather(mine if start.environment.local_rank == 0 else (False, False, ""))
        resume = start.resume or any(same for same, _, _ in every)
        others = [host for _, is_there, host in every[1:] if is_there and not every[0][1]]
        if others and not resume:
            raise UserError(
                f"{path}: a run is there already on {', '.join(dict.fromkeys(others))}; go on with --resume, "
                "or give another --run"
            )
        # What is only elsewhere is sent before the first step.
        here = resume and (run.recipe.exists() or not others)
        token = world.broadcast(uuid.uuid4().hex)

        def lead() -> Job | None:
            resolved = held.enter_context(opened(run, recipe, resume=here, token=token))
            if here and is_finished(run, resolved):
                return None
            environment = start.environment
            launched = {"launcher": environment.name, "job": name, "restart": environment.restart}
            return training_job(resolved, run, start.sinks, launched=launched)

        job = on_first(world, lead)
        has_work = world.broadcast(job is not None)
        is_other = has_work and start.environment.local_rank == 0 and not world.is_first
        together(world, lambda: _lock_copy(run, token, held) if is_other else None)
        return job


def _lock_copy(run: RunDirectory, token: str, held: ExitStack) -> None:
    """Lock the directory on another machine, which may share it; one that cannot be written has no copy."""
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        with writing.token(run.path):
            pass
    except OSError:  # reported when the copies are counted
        return
    held.enter_context(locked(run, run.recipe.exists() or bool(run.steps()), token))


def _is_mine(path: Path) -> bool:
    """Whether this user made a folder, or what it would lie in: launchers' stores are open to all users."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    return there.stat().st_uid == os.geteuid()


def _job_and_path(world: World, start: Start) -> tuple[str, Path]:
    """The job's name, "" where nothing shows that two starts are one job's; and its run directory."""
    cluster = environments.job()
    name = cluster or world.recall("job")
    if not name and world.launcher_store is not None:
        name = uuid.uuid4().hex
        world.remember("job", name)
    before = Path(world.recall("run"))
    if start.run is not None:
        path = start.run
    elif before != Path() and _is_mine(before):
        path = before
    elif cluster:
        path = Path("runs") / f"{start.name}-{cluster}"
    else:
        path = numbered_folder(Path("runs", start.name), "--run")
    world.remember("run", str(path.absolute()))
    return name, path
