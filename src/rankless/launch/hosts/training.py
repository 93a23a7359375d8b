"""A training on several hosts: what the user asked for, and what each host gets of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankless.errors import UserError
from rankless.launch.hosts.messages import Begin
from rankless.launch.job import Job
from rankless.launch.sharing import refuse_idle
from rankless.recipe.load import to_json
from rankless.recipe.schema import Recipe

if TYPE_CHECKING:  # the command line reads what is wanted before PyTorch is imported
    from rankless.launch.hosts.host_pool import Member


@dataclass(frozen=True)
class Training:
    """A training on several hosts.

    Attributes:
        recipe: with the path of the data as the user gave it.
        run: the run directory, the same on every host.
        devices: how many each host uses that names no number; None is all.
        resume: go on with a run.
        sinks: names of the user's sinks.
        launched: when this start was, and with which command.
        dry_run_steps: end after so many, with a trace of every tensor; 0 is a real run.
    """

    recipe: Recipe
    run: Path
    devices: int | None
    resume: bool
    sinks: Sequence[str]
    launched: dict[str, Any]
    dry_run_steps: int = 0

    def json(self, member: Member) -> str:
        """The recipe as JSON, with the path of the data on that host."""
        recipe = self.recipe
        if member.host.data:
            recipe = replace(recipe, data=replace(recipe.data, root=member.host.data))
        return to_json(recipe)

    def beginning(self, member: Member, token: str, *, resume: bool) -> Begin:
        """The command that has a host begin, or join."""
        run, stays = str(self.run), not self.dry_run_steps
        return Begin(recipe=self.json(member), run=run, token=token, resume=resume, stays=stays)

    def job(self, member: Member) -> Job:
        """What the ranks of a host do."""
        return Job(
            "train",
            self.json(member),
            str(self.run / "logs"),
            run=str(self.run),
            sinks=list(self.sinks),
            launched=self.launched,
            dry_run_steps=self.dry_run_steps,
            traced=bool(self.dry_run_steps),
        )

    def shares(self, members: Sequence[Member]) -> dict[int, int]:
        """How many ranks each host runs, by its index: no more in all than there are micro-batches.

        Raises:
            UserError: some host would have none.
        """
        most = self.recipe.batch.micro_batches
        refuse_idle("--hosts has {} hosts", [len(members)], self.recipe)
        counts = self.devices_of(members)
        while sum(counts.values()) > most:  # those with the most give up one
            counts[max(counts, key=lambda index: counts[index])] -= 1
        return counts

    def devices_of(self, members: Sequence[Member]) -> dict[int, int]:
        """How many devices each host is to use, by its index, whether or not there is work for all.

        Raises:
            UserError: some host has not as many.
        """
        counts, problems = {}, []
        for member in members:
            own = member.facts["devices"] or max(member.facts["cores"] // self.recipe.threads, 1)
            counts[member.index] = wanted = member.host.devices or self.devices or own
            if member.facts["device"] != "cpu" and wanted > member.facts["devices"]:
                problems.append(
                    f"{member.name}: {wanted} devices are wanted, but it has {member.facts['devices']}; "
                    f"give {member.name}:{member.facts['devices']}"
                )
        if problems:
            raise UserError(problems)
        return counts


@dataclass(frozen=True)
class Wanted:
    """What the user asked for.

    Attributes:
        recipe: None takes that of the run to go on with.
        overrides: changes to it then.
        run: the run directory on every host; None makes a new one.
        name: what to call that.
        devices, resume, sinks: as for :class:`Training`.
        least: with how many hosts the training goes on when others are lost.
        dry_run_steps: end after so many, print nothing, and leave nothing behind; 0 is a real run.
    """

    recipe: Recipe | None
    overrides: Sequence[str]
    run: Path | None
    name: str
    devices: int | None
    resume: bool
    sinks: Sequence[str]
    least: int
    dry_run_steps: int = 0
