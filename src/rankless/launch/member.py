"""Be one rank of a training whose ranks a cluster's launcher has started: torchrun, srun, mpirun, Ray, …

Each rank reads the recipe and the data by itself; then they meet, compare, and raise alike what any of them
has found. Rank 0 alone opens the run directory and prints. A launcher that starts the ranks again, or a
cluster that requeues the job, goes on in the same directory from its newest checkpoint.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankless.errors import INTERRUPTED, STOPPED, UserError
from rankless.hardware.processes import die_with_parent, name_process
from rankless.launch import rank_job
from rankless.launch.environments.environment import Environment
from rankless.launch.job import LOST_PEER, Job
from rankless.launch.rank_log import RankOutput
from rankless.printing import say
from rankless.runs.directory import RunDirectory

if TYPE_CHECKING:
    from rankless.engine.loop import StopRequest
    from rankless.recipe.schema import Recipe
    from rankless.world.notes import Note, Notes
    from rankless.world.process_group import World

_PATIENCE = 5.0  # seconds for the others to say how they ended


@dataclass(frozen=True)
class Asked:
    """What one rank was asked for.

    Attributes:
        recipe: its instruction set is in use; None where other machines have the run to go on with.
        name: what to call a new run.
        devices: how many ranks the user expects; None takes as many as there are.
        sinks: the user's, by name.
    """

    recipe: Recipe | None
    name: str
    devices: int | None
    sinks: Sequence[str] = ()


def train(environment: Environment, ask: Callable[[], Asked], run: Path | None, *, resume: bool) -> int:
    """Train as the rank that a launcher has made of this process; rank 0 prints how it went.

    Args:
        environment: what the launcher says.
        ask: reads what this rank is asked for; PyTorch has not been imported before.
        run: the run directory; None makes one.
        resume: go on in ``run``. A later start of the same job goes on without it.

    Returns:
        The exit code: 0, 85 when any rank was asked to stop and all have saved, 130 after Ctrl-C, 75 when
        another rank was lost, 1 when it could not go on, 2 after an error, which rank 0 has raised.

    Raises:
        UserError: on rank 0, what any rank has met; on any rank, why it did not meet the others.
    """
    environment.export()
    # Torch warns of every connection from an address that has no name.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Where Slurm tracks processes by /proc (proctrack/linuxproc), no name with a space gets a signal.
    name_process(f"rank-{environment.rank}")
    faulthandler.enable()
    if environment.leaves_orphans:
        die_with_parent()
    output = RankOutput(environment.rank)
    member = _Member(environment, run, resume, output)
    try:
        return member.join_and_train(member.prepare(ask))
    except UserError as error:
        if environment.rank and member.met:
            return error.exit_code
        raise
    finally:
        output.to_terminal()


class _Member:
    """One rank from its start to its end.

    Attributes:
        met: whether this rank has met the others, so that one can speak for all.
        job: what it does, once all agree.
    """

    def __init__(self, environment: Environment, run: Path | None, resume: bool, output: RankOutput) -> None:
        self.environment, self.run, self.resume, self.output = environment, run, resume, output
        self.asked = Asked(None, "run", None)
        self.recipe: Recipe | None = None
        self.sinks: list[str] = []
        self.met = False
        self.job = Job("train", "", "")

    def prepare(self, ask: Callable[[], Asked]) -> UserError | None:
        """Read the recipe, and the data once per machine; an error waits until the ranks have met.

        It comes before the first thread of the process group: loader processes are forked here.
        """
        try:
            self.asked = ask()
            size, devices = self.environment.world_size, self.asked.devices
            if devices not in (None, size):
                raise UserError(
                    f"--devices is {devices}, but the launcher has started {size} ranks "
                    f"({self.environment.name}); expected one device per rank: leave --devices out, or start "
                    f"{devices} ranks"
                )
            if self.asked.recipe:
                self.recipe = self._checked(self.asked.recipe, first=True)
        except UserError as error:
            return error
        return None

    def _checked(self, recipe: Recipe, *, first: bool) -> Recipe:
        """A recipe that can be trained here; data that is new to this machine is read by its first rank."""
        from rankless.launch.opening import checked
        from rankless.tasks import resolve_recipe

        recipe, self.sinks = checked(recipe, None, self.asked.sinks)
        if first:
            rank_job.fork_loaders_early(recipe)
        return recipe if first and self.environment.local_rank else resolve_recipe(recipe)

    def join_and_train(self, error: UserError | None) -> int:
        """Meet the others and train; the exit code.

        Args:
            error: what this rank has met so far.
        """
        from rankless.engine.loop import StopRequest
        from rankless.world.notes import Notes
        from rankless.world.process_group import is_lost_peer, join

        notes: Notes | None = None
        with ExitStack() as held:  # the lock of the run directory is left last
            try:
                with join() as world:
                    notes, self.met = Notes(world), True
                    stop = StopRequest()
                    stop.listen()
                    recipe = self._agree(world, error, held)
                    if recipe is None:
                        return 0
                    finished, number = self._train(world, recipe, stop)
            except Exception as found:
                if notes is None and is_lost_peer(found):
                    raise self._unmet(found) from found
                if notes is None:
                    raise
                return self._ended(found, notes)
            self.output.to_terminal()
            if self.environment.rank:
                return 0 if finished else INTERRUPTED if number == signal.SIGINT else STOPPED
            from rankless.launch.opening import report

            return report(finished, number, RunDirectory(Path(self.job.run)))

    def _agree(self, world: World, error: UserError | None, held: ExitStack) -> Recipe | None:
        """Compare what the ranks are asked for, and have rank 0 open the run.

        Returns:
            The recipe, on every rank the same; None where the run has nothing left to do.
        """
        from rankless.launch.agreement import on_first, refuse_other_recipes, together
        from rankless.launch.member_run import Start, open_run
        from rankless.launch.run_lock import refuse_nothing
        from rankless.recipe.load import from_json, to_json

        def asked() -> Recipe | None:
            if error:
                raise error
            return self.recipe

        found = together(world, asked)
        has_recipe = world.all_gather(found is not None)
        if not any(has_recipe):  # there is only the run to take it from, and no machine has that
            on_first(world, lambda: refuse_nothing(RunDirectory(self.run or Path())))
        text = world.broadcast(to_json(found) if found else None, has_recipe.index(True))
        if found is None or self.environment.local_rank:
            other = found or from_json(text)
            mine = together(world, lambda: self._checked(other, first=False))
        else:
            mine = together(world, lambda: found)
        refuse_other_recipes(world, mine)
        world.own_micro_batches(mine.batch.micro_batches)
        start = Start(self.environment, self.run, self.asked.name, self.resume, self.sinks)
        opened = open_run(world, start, mine, held)
        sent = world.broadcast(_sent(opened) if opened else None)
        if sent is None:
            return None
        self.job = opened or Job(**sent)
        self.output.log_to(RunDirectory(Path(self.job.run)), "train")
        recipe = from_json(self.job.recipe)
        return replace(recipe, data=replace(recipe.data, root=mine.data.root))

    def _train(self, world: World, recipe: Recipe, stop: StopRequest) -> tuple[bool, int]:
        """Train; whether all steps are done, and the signal that ended it, 0 without one."""
        with rank_job.computes_like(recipe):
            finished = rank_job.train(self.job, recipe, world, stop)
        numbers = world.gather(int(stop.signal))
        return finished, 0 if finished else world.broadcast(_foremost(numbers or []))

    def _ended(self, error: Exception, notes: Notes) -> int:
        """Let all ranks know how this one ended, and hear how they did; the exit code.

        Raises:
            UserError: what any rank has met.
        """
        from rankless.launch.record import record_error

        rank, size = self.environment.rank, self.environment.world_size
        note, others = self._note(error), list["Note"]()
        if rank and "lost" in note:  # its cause may have said why
            others = notes.wait(_PATIENCE, lambda found: rank_job.error_in(found) is not None)
        notes.leave(note)
        if known := rank_job.error_in(others):
            raise known
        every = [note] if rank else notes.wait(_PATIENCE, lambda found: len(found) == size)
        if known := rank_job.error_in(every):
            if not rank and self.job.run:
                record_error(RunDirectory(Path(self.job.run)), known.problems)
            raise known
        if not rank:
            self._report(every)
        codes: list[int] = [one["exit"] for one in every if "cause" in one]
        return codes[0] if codes else LOST_PEER

    def _note(self, error: Exception) -> Note:
        """How this rank ended, for the others."""
        from rankless.hardware.shortages import shortage
        from rankless.world.process_group import is_lost_peer

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
        """Print why the ranks could not go on."""
        from rankless.launch.opening import report

        self.output.to_terminal()
        silent = sorted(set(range(self.environment.world_size)) - {note["rank"] for note in notes})
        for note in notes:
            if "cause" in note:
                say(f"error: {note['cause']}", file=sys.stderr)
        if silent:
            say(
                f"error: rank {', '.join(map(str, silent))}: lost without a word; expected a process that "
                "was killed, or a machine or network that is down: look at what the launcher prints",
                file=sys.stderr,
            )
        report(False, None, RunDirectory(Path(self.job.run)))

    def _unmet(self, error: Exception) -> UserError:
        """Why this rank did not meet the others."""
        environment = self.environment
        where = f"{environment.address}:{environment.port}"
        return UserError(
            f"rank {environment.rank} of {environment.world_size}: did not meet the others at {where} "
            f"({str(error).splitlines()[0]}); expected all of them to be started and to reach that address: "
            "look at the other ranks' output, or set MASTER_ADDR and MASTER_PORT to what all machines reach"
        )


def _sent(job: Job) -> dict[str, Any]:
    """A job for the other ranks, which may be in other folders."""
    run, logs = (str(Path(path).absolute()) for path in (job.run, job.logs))
    return vars(replace(job, run=run, logs=logs))


def _foremost(numbers: Sequence[int]) -> int:
    """Of the signals that came to the ranks, 0 where none did, the one that all ends are reported by."""
    if signal.SIGINT in numbers:
        return int(signal.SIGINT)
    return next(filter(None, numbers), int(signal.SIGTERM))
