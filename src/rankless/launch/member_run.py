"""One rank of a training run that a cluster's launcher has started.

Each rank reads the recipe and the data by itself. Then the ranks meet and compare both; if any rank has an
error, all raise it. Only rank 0 opens the run directory and prints. If the launcher restarts the ranks or the
cluster requeues the job, they resume in the same directory from its newest checkpoint.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import traceback
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankless.engine.loop import StopRequest
from rankless.errors import INTERRUPTED, LOST_PEER, STOPPED, UserError
from rankless.files import writing
from rankless.files.numbered import numbered_folder, removed_on_error
from rankless.hardware.computing import computes_like
from rankless.hardware.shortages import shortage
from rankless.launch import environments, rank_job
from rankless.launch.agreement import on_all, on_first, refuse_other_recipes
from rankless.launch.environments import Environment
from rankless.launch.job import Job, Wanted, error_in
from rankless.launch.opening import checked, is_finished, opened, record_error, report, training_job
from rankless.launch.rank_log import RankOutput
from rankless.launch.resume import was_started_by
from rankless.launch.run_lock import locked, refuse_no_run
from rankless.models.published import prefetch
from rankless.printing import say
from rankless.recipe.load import from_json, to_json
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.tasks import resolve_recipe
from rankless.world.notes import Note, Notes
from rankless.world.process_group import World, is_lost_peer, join

_PATIENCE = 5.0  # seconds to wait for the notes of the other ranks


class MemberRun:
    """Trains as one rank of a cluster's launcher."""

    def __init__(self, environment: Environment, wanted: Wanted | UserError, output: RankOutput) -> None:
        self.environment, self.output = environment, output
        self.wanted = wanted if isinstance(wanted, Wanted) else Wanted(None, "run")
        self.error = None if isinstance(wanted, Wanted) else wanted
        self.met = False  # whether the ranks have met, so that rank 0 can report an error for all
        self.sinks: list[str] = []
        self.job = Job("train", "", "")

    def train(self) -> int:
        """Train and return the exit code; raise errors only on rank 0 or if the ranks have not met."""
        try:
            # Loader processes are forked here, before the process group starts its first thread.
            recipe = None if self.error else self._prepared()
        except UserError as error:
            self.error, recipe = error, None
        try:
            return self._join_and_train(recipe)
        except UserError as error:
            if self.environment.rank and self.met:
                return error.exit_code
            raise

    def _prepared(self) -> Recipe | None:
        size, devices = self.environment.world_size, self.wanted.devices
        if devices not in (None, size):
            raise UserError(
                f"--devices is {devices}, but the launcher has started {size} ranks "
                f"({self.environment.name}); expected one device per rank; remove --devices, or start "
                f"{devices} ranks"
            )
        return self._checked(self.wanted.recipe, first=True) if self.wanted.recipe else None

    def _checked(self, recipe: Recipe, *, first: bool) -> Recipe:
        """Check and resolve a recipe; with ``first``, only the first rank on each machine resolves it."""
        recipe, self.sinks = checked(recipe, None, self.wanted.sinks)
        if first:
            rank_job.fork_loaders_early(recipe)
            if not self.wanted.resume:
                prefetch(recipe.model)  # one rank of each machine downloads while the others wait
        return recipe if first and self.environment.local_rank else resolve_recipe(recipe)

    def _join_and_train(self, recipe: Recipe | None) -> int:
        notes: Notes | None = None
        with ExitStack() as held:  # the lock of the run directory is released last
            try:
                with join() as world:
                    notes, self.met = Notes(world), True
                    stop = StopRequest()
                    stop.listen()
                    agreed = self._agree(world, recipe, held)
                    if agreed is None:
                        return 0
                    finished, number = self._train(world, agreed, stop)
            except Exception as found:
                if notes is None and is_lost_peer(found):
                    raise self._meeting_error(found) from found
                if notes is None:
                    raise
                return self._handle(found, notes)
            self.output.to_terminal()
            if self.environment.rank:
                return 0 if finished else INTERRUPTED if number == signal.SIGINT else STOPPED
            return report(finished, number, RunDirectory(Path(self.job.run)))

    def _agree(self, world: World, recipe: Recipe | None, held: ExitStack) -> Recipe | None:
        """Compare the options of the ranks, and let rank 0 open the run.

        Return the recipe on which the ranks agree, or None if the run is already finished.
        """

        def own() -> Recipe | None:
            if self.error:
                raise self.error
            return recipe

        found = on_all(world, own)
        has_recipe = world.all_gather(found is not None)
        if not any(has_recipe):  # no machine has the run that would give the recipe
            on_first(world, lambda: refuse_no_run(RunDirectory(self.wanted.run or Path())))
        text = world.broadcast(to_json(found) if found else None, has_recipe.index(True))
        if found is None or self.environment.local_rank:
            other = found or from_json(text)
            mine = on_all(world, lambda: self._checked(other, first=False))
        else:
            mine = on_all(world, lambda: found)
        refuse_other_recipes(world, mine)
        world.own_micro_batches(mine.batch.micro_batches)
        job = open_run(world, self.environment, replace(self.wanted, sinks=self.sinks), mine, held)
        sent = world.broadcast(_sent(job) if job else None)
        if sent is None:
            return None
        self.job = job or Job(**sent)
        self.output.log_to(RunDirectory(Path(self.job.run)), "train")
        agreed = from_json(self.job.recipe)
        return replace(agreed, data=replace(agreed.data, root=mine.data.root))

    def _train(self, world: World, recipe: Recipe, stop: StopRequest) -> tuple[bool, int]:
        with computes_like(recipe):
            finished = rank_job.train(self.job, recipe, world, stop)
        numbers = world.gather(int(stop.signal)) or []
        number = signal.SIGINT if signal.SIGINT in numbers else next(filter(None, numbers), signal.SIGTERM)
        return finished, 0 if finished else world.broadcast(int(number))

    def _handle(self, error: Exception, notes: Notes) -> int:
        """Tell the other ranks about the error, read their notes, and return the exit code."""
        rank, size = self.environment.rank, self.environment.world_size
        note, others = self._note(error), list[Note]()
        if rank and "lost" in note:  # the lost rank may have reported the reason
            others = notes.wait(_PATIENCE, lambda found: error_in(found) is not None)
        notes.leave(note)
        if known := error_in(others):
            raise known
        every = [note] if rank else notes.wait(_PATIENCE, lambda found: len(found) == size)
        if known := error_in(every):
            if not rank and self.job.run:
                record_error(RunDirectory(Path(self.job.run)), known.problems)
            raise known
        if not rank:
            self._report(every)
        codes: list[int] = [one["exit"] for one in every if "cause" in one]
        return codes[0] if codes else LOST_PEER

    def _note(self, error: Exception) -> Note:
        rank = self.environment.rank
        if isinstance(error, UserError):
            known: UserError | None = error
        elif not shortage(error) and is_lost_peer(error):
            print(f"rank {rank}: lost a peer: {str(error).splitlines()[0]}", file=sys.stderr)
            return {"rank": rank, "exit": LOST_PEER, "lost": True}
        else:
            known = rank_job.understood(error)
            if not self.job.run:
                self.output.to_terminal()  # there is no log
            traceback.print_exc()
        if known is None:
            what = traceback.format_exception_only(error)[-1].strip()
            return {"rank": rank, "exit": 1, "cause": f"rank {rank} failed: {what}"}
        if not self.job.recipe:
            return {"rank": rank, "exit": known.exit_code, "problems": list(known.problems)}
        return {"rank": rank, **rank_job.note_of(known, self.job)}

    def _report(self, notes: Sequence[Note]) -> None:
        self.output.to_terminal()
        silent = sorted(set(range(self.environment.world_size)) - {note["rank"] for note in notes})
        for note in notes:
            if "cause" in note:
                say(f"error: {note['cause']}", file=sys.stderr)
        if silent:
            ranks = f"rank{'s' * (len(silent) > 1)} {', '.join(map(str, silent))}"
            say(
                f"error: no message from {ranks}: a process was probably killed, or a machine or the network "
                "is down; see the output of the launcher",
                file=sys.stderr,
            )
        report(False, None, RunDirectory(Path(self.job.run)))

    def _meeting_error(self, error: Exception) -> UserError:
        environment = self.environment
        where = f"{environment.address}:{environment.port}"
        return UserError(
            f"rank {environment.rank} of {environment.world_size}: cannot meet the other ranks at {where} "
            f"({str(error).splitlines()[0]}); expected all ranks to start and to reach that address; see the "
            "output of the other ranks, or set MASTER_ADDR and MASTER_PORT to an address that all ranks can "
            "reach"
        )


def _sent(job: Job) -> dict[str, Any]:
    # The ranks may run in different folders.
    run, logs = (str(Path(path).absolute()) for path in (job.run, job.logs))
    return vars(replace(job, run=run, logs=logs))


def open_run(
    world: World, environment: Environment, wanted: Wanted, recipe: Recipe, held: ExitStack
) -> Job | None:
    """Open the run directory on rank 0 until ``held`` is closed; all ranks must call this function.

    The run is resumed if the user requests it, or if an earlier start of the same job saved a checkpoint on
    any machine. Return the job on rank 0, or None if the run is already finished. Return None on the other
    ranks.
    """
    if world.is_first:  # also removes new parents of the run directory
        held.enter_context(removed_on_error(wanted.run or Path("runs", wanted.name)))
    found = on_first(world, lambda: _job_and_path(world, wanted))
    name, path = world.broadcast((found[0], str(found[1].absolute())) if found else None)
    run = RunDirectory(found[1] if found else Path(path))
    with removed_on_error(run.path) if found else nullcontext():
        mine = (was_started_by(run, name), bool(run.steps()), platform.node())
        every = world.all_gather(mine if environment.local_rank == 0 else (False, False, ""))
        resume = wanted.resume or any(same for same, _, _ in every)
        others = [host for _, is_there, host in every[1:] if is_there and not every[0][1]]
        if others and not resume:
            raise UserError(
                f"{path}: already contains a run on {', '.join(dict.fromkeys(others))}; continue with "
                "--resume, or use another --run"
            )
        # Files that only other machines have are sent before the first step.
        here = resume and (run.recipe.exists() or not others)
        token = world.broadcast(uuid.uuid4().hex)

        def lead() -> Job | None:
            resolved = held.enter_context(opened(run, recipe, resume=here, token=token))
            if here and is_finished(run, resolved):
                return None
            launched = {"launcher": environment.name, "job": name, "restart": environment.restart}
            return training_job(resolved, run, wanted.sinks, launched=launched)

        job = on_first(world, lead)
        has_work = world.broadcast(job is not None)
        is_other = has_work and environment.local_rank == 0 and not world.is_first
        on_all(world, lambda: _lock_copy(run, token, held) if is_other else None)
        return job


def _lock_copy(run: RunDirectory, token: str, held: ExitStack) -> None:
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        with writing.token(run.path):
            pass
    except OSError:  # will be reported when the copies are counted
        return
    held.enter_context(locked(run, run.recipe.exists() or bool(run.steps()), token))


def _is_own(path: Path) -> bool:
    """Check whether this user owns ``path`` or its nearest existing parent.

    The path comes from the launcher's store, to which every user can write.
    """
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    return there.stat().st_uid == os.geteuid()


def _job_and_path(world: World, wanted: Wanted) -> tuple[str, Path]:
    """Return the name of the job ("" if restarts cannot be recognized) and its run directory."""
    cluster = environments.job()
    name = cluster or world.recall("job")
    if not name and world.launcher_store is not None:
        name = uuid.uuid4().hex
        world.remember("job", name)
    before = Path(world.recall("run"))
    if wanted.run is not None:
        path = wanted.run
    elif before != Path() and _is_own(before):
        path = before
    elif cluster:
        path = Path("runs") / f"{wanted.name}-{cluster}"
    else:
        path = numbered_folder(Path("runs", wanted.name), "--run")
    world.remember("run", str(path.absolute()))
    return name, path
