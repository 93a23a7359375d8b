"""A training on several hosts: the user's options, and each host's part."""

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

if TYPE_CHECKING:  # the command line uses Wanted before PyTorch is imported
    from rankless.launch.hosts.host_pool import Member


@dataclass(frozen=True)
class Training:
    """A training on several hosts.

    Attributes:
        recipe: the recipe, with the path of the data as the user gave it.
        run: the run directory, the same on every host.
        devices: number of devices to use on hosts that give no number; None uses all.
        sinks: names of the user's sinks.
        launched: time and command of this start.
        dry_run_steps: number of steps of a dry run with traces; 0 for a real run.
    """

    recipe: Recipe
    run: Path
    devices: int | None
    resume: bool
    sinks: Sequence[str]
    launched: dict[str, Any]
    dry_run_steps: int = 0

    def json(self, member: Member) -> str:
        """Return the recipe as JSON, with the path of the data on that host."""
        recipe = self.recipe
        if member.host.data:
            recipe = replace(recipe, data=replace(recipe.data, root=member.host.data))
        return to_json(recipe)

    def beginning(self, member: Member, token: str, *, resume: bool) -> Begin:
        """Return the command for a host to begin or join the training."""
        run, stays = str(self.run), not self.dry_run_steps
        return Begin(recipe=self.json(member), run=run, token=token, resume=resume, stays=stays)

    def job(self, member: Member) -> Job:
        """Return the job of a host's ranks."""
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
        """Return each host's number of ranks, by index; in total, at most one rank per micro-batch.

        Raise a UserError if a host would have no rank.
        """
        most = self.recipe.batch.micro_batches
        refuse_idle("--hosts has {} hosts", [len(members)], self.recipe)
        counts = self.devices_of(members)
        while sum(counts.values()) > most:  # the host with the most ranks gives up one
            counts[max(counts, key=lambda index: counts[index])] -= 1
        return counts

    def devices_of(self, members: Sequence[Member]) -> dict[int, int]:
        """Return each host's number of devices to use, by index; some may have no work.

        Raise a UserError if a host has too few.
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
            counts[member.index] -= len(member.left_out)
        if problems:
            raise UserError(problems)
        return counts


@dataclass(frozen=True)
class Wanted:
    """The user's options for a training on several hosts.

    Attributes:
        recipe: the recipe; None uses the recipe of the run to resume, with ``overrides``.
        run: the run directory on every host; None creates a new one.
        name: name of a new run.
        devices, resume, sinks: as for :class:`Training`.
        least: minimum number of hosts to continue with when others are lost.
        dry_run_steps: number of steps of a dry run, which prints and keeps nothing; 0 for a real run.
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
