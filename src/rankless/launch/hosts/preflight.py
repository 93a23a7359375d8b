"""Prepare a training run on several hosts.

Before the first round, the hosts are connected and compared, open the run, and find the addresses at which
they reach each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankless.engine.environment import hardware_differences, variable_differences
from rankless.errors import UserError
from rankless.launch.hosts import messages
from rankless.launch.hosts.channel import remedy
from rankless.launch.hosts.host_pool import A, Commands, HostPool, Member
from rankless.launch.hosts.reach import best_address, sources
from rankless.launch.job import Job, Wanted
from rankless.launch.opening import this_start, training_job
from rankless.launch.sharing import refuse_idle
from rankless.recipe.load import from_json, to_json
from rankless.recipe.schema import Recipe
from rankless.runs import starts
from rankless.runs.directory import RunDirectory


@dataclass(frozen=True)
class Training:
    """A training run on several hosts."""

    wanted: Wanted
    recipe: Recipe  # with the path of the data as the user gave it
    run: Path  # the same on every host
    launched: dict[str, Any] = field(default_factory=dict)

    def recipe_for(self, member: Member) -> Recipe:
        """Return the recipe with the path of the data on a host."""
        if not member.host.data:
            return self.recipe
        return replace(self.recipe, data=replace(self.recipe.data, root=member.host.data))

    def json(self, member: Member) -> str:
        """Return that recipe as JSON."""
        return to_json(self.recipe_for(member))

    def begin_command(self, member: Member, token: str, *, resume: bool) -> messages.Begin:
        """Return the command that makes a host start or join the run."""
        run, stays = str(self.run), not self.wanted.dry_run_steps
        return messages.Begin(recipe=self.json(member), run=run, token=token, resume=resume, stays=stays)

    def job(self, member: Member) -> Job:
        """Return the job for the ranks of a host."""
        steps = self.wanted.dry_run_steps
        return training_job(
            self.recipe_for(member),
            RunDirectory(self.run),
            self.wanted.sinks,
            dry_run_steps=steps,
            traced=bool(steps),
            launched=self.launched,
        )

    def shares(self, members: Sequence[Member]) -> dict[int, int]:
        """Return the number of ranks for each host index. There is at most one rank per micro-batch."""
        most = self.recipe.batch.micro_batches
        refuse_idle("--hosts has {} hosts", [len(members)], self.recipe)
        counts = self.devices_of(members)
        while sum(counts.values()) > most:  # the host with the most ranks gives up one
            counts[max(counts, key=lambda index: counts[index])] -= 1
        return counts

    def devices_of(self, members: Sequence[Member]) -> dict[int, int]:
        """Return the number of devices to use for each host index. Some may stay idle."""
        counts, problems = {}, []
        for member in members:
            own = member.facts["devices"] or max(member.facts["cores"] // self.recipe.threads, 1)
            counts[member.index] = wanted = member.host.devices or self.wanted.devices or own
            if member.facts["device"] != "cpu" and wanted > member.facts["devices"]:
                problems.append(
                    f"{member.name}: {wanted} devices were requested, but the host has "
                    f"{member.facts['devices']}; use {member.name}:{member.facts['devices']}"
                )
            counts[member.index] -= len(member.left_out)
        if problems:
            raise UserError(problems)
        return counts


_MOMENT = 60.0  # seconds for quick commands


@dataclass(frozen=True)
class Difference:
    """A difference between hosts."""

    what: str
    values: str
    fix: str


def problems(members: Sequence[Member]) -> list[str]:
    """Return a message for each problem that prevents these hosts from training together."""
    found = [f"{member.name}: {text}" for member in members for text in member.facts["problems"]]
    by_machine: dict[str, list[str]] = {}
    for member in members:
        by_machine.setdefault(member.facts.get("machine") or member.name, []).append(member.name)
    found += [
        f"{', '.join(same)}: these are the same machine; list it once, such as {same[0]}:{len(same)}"
        for same in by_machine.values()
        if len(same) > 1
    ]
    return [*found, *(f"the hosts differ in {d.what}: {d.values}; {d.fix}" for d in differences(members))]


def warnings(members: Sequence[Member]) -> list[str]:
    """Return a message for each difference between hosts that may change the results."""
    return [
        f"the weights depend on the hosts, because {d.what} differs ({d.values}); {d.fix}"
        for d in rounding(members)
    ]


def differences(members: Sequence[Member]) -> list[Difference]:
    """Return the differences between hosts that prevent training."""
    found = []
    names = dict.fromkeys(name for member in members for name in _versions(member))
    for name in names:
        if name not in starts.MAY_DIFFER:
            found += _difference(
                members, name, {m.name: _versions(m).get(name, "not installed") for m in members}
            )
    found += _difference(members, "the kind of device", {m.name: m.facts["device"] for m in members})
    data = {m.name: str(m.facts["data"])[:12] for m in members if not m.facts["problems"]}
    return [*found, *_difference(members, "the training data (its digest)", data)]


def rounding(members: Sequence[Member]) -> list[Difference]:
    """Return the differences between hosts that may change the results."""
    every = [member.facts["environment"] for member in members]
    kind = "use hosts of the same kind, or set cpu_isa=avx2 if the CPUs differ"
    same = "set it to the same value on all hosts"
    return [
        Difference(what, _by_value(dict(zip([m.name for m in members], values, strict=True))), fix)
        for found, fix in ((hardware_differences(every), kind), (variable_differences(every), same))
        for what, values in found
    ]


def _versions(member: Member) -> Mapping[str, str]:
    versions: Mapping[str, str] = member.facts["environment"]["versions"]
    return versions


def _difference(members: Sequence[Member], what: str, values: Mapping[str, Any]) -> list[Difference]:
    if len(set(values.values())) < 2:
        return []
    fix = "use hosts with the same value"
    if what in ("rankless", "rankless source"):
        fix = "add --sync to use this machine's copy on all hosts"
    elif "data" in what:
        fix = "copy the same data to all hosts, or add its path to a host, such as host:4:/mnt/data"
    elif what in _versions(members[0]):
        fix = f"install the same version, for example with pip install {what}=={next(iter(values.values()))}"
    return [Difference(what, _by_value(values), fix)]


def _by_value(values: Mapping[str, str]) -> str:
    """Return a phrase such as ``2.14.1 on a, b; 2.13.0 on c``."""
    return "; ".join(
        f"{value} on {', '.join(name for name, other in values.items() if other == value)}"
        for value in dict.fromkeys(values.values())
    )


def connect(pool: HostPool) -> None:
    """Connect to all hosts; raise a UserError if any host cannot be used."""
    pool.connect(pool.members)
    pool.wait_ready()
    if missing := [member for member in pool.members if member.lost]:
        fixes = {m.index: remedy(m.lost, m.host.address, pool.access.python)[1] for m in missing}
        raise UserError(
            f"{m.name}: cannot be used ({m.lost}); {fixes[m.index]}, or remove the host" for m in missing
        )


def compare(pool: HostPool, training: Training, members: Sequence[Member]) -> list[str]:
    """Compare the properties of hosts, and return warnings about differences that may change the results."""
    replies = must(pool, members, lambda m: messages.Facts(recipe=training.json(m), run=str(training.run)))
    for member in members:
        member.facts = replies[member.index].value
    known = [member for member in pool.members if member.facts and not member.lost]
    if found := problems(known):
        raise UserError(found)
    return warnings(known)


def training_of(pool: HostPool, wanted: Wanted) -> tuple[Training, Member]:
    """Return the training run, and the host with the newest checkpoint."""
    run, number = wanted.run or Path("runs") / wanted.name, 1
    while True:
        replies = must(pool, pool.members, messages.Holds(run=str(run)))
        if wanted.run or not any(reply.exists for reply in replies.values()):
            break
        number += 1
        run = run.with_name(f"{wanted.name}-{number}")
    for member in pool.members:
        member.holds = replies[member.index]
    if wanted.resume and not any(member.holds.has_run for member in pool.members):
        raise UserError(
            f"{run}: nothing to resume on {names(pool.members)} (no recipe.yaml and no checkpoint); "
            "use the directory of an existing run, or remove --resume"
        )
    newest = max(pool.members, key=lambda m: (m.holds.step or 0, m.holds.has_run, -m.index))
    recipe = wanted.recipe
    if recipe is None:
        command = messages.Recipe(run=str(run), overrides=list(wanted.overrides))
        recipe = from_json(must(pool, [newest], command)[newest.index].value)
    launched = {**this_start(), "hosts": [str(member.host) for member in pool.members]}
    return Training(wanted, recipe, run, launched), newest


def prepare(pool: HostPool, training: Training, member: Member) -> tuple[Training, int | None]:
    """Resolve the recipe on a host, and compare it with the run there.

    Return the training with the resolved recipe, and the last step of the run if it is already finished.
    """
    command = messages.Prepare(
        recipe=training.json(member),
        resume=training.wanted.resume,
        run=str(training.run),
        sinks=list(training.wanted.sinks),
    )
    reply = must(pool, [member], command)[member.index]
    recipe = from_json(reply.recipe)
    recipe = replace(recipe, data=replace(recipe.data, root=training.recipe.data.root))
    wanted = replace(training.wanted, sinks=reply.sinks)
    return replace(training, wanted=wanted, recipe=recipe), reply.finished


def must_meet(pool: HostPool, members: Sequence[Member]) -> None:
    """Find an address of each host that all other hosts can reach; raise a UserError if there is none."""
    missed = find_addresses(pool, members)
    refuse_lost(members)
    if missed:
        raise UserError(
            f"{pool.members[index].name}: cannot be reached by {names(others)} at any of its addresses "
            f"({', '.join(pool.members[index].ports) or 'it has none'}); open its ports for the other hosts "
            "in the firewall, or connect the hosts to the same network"
            for index, others in missed.items()
        )


def find_addresses(pool: HostPool, members: Sequence[Member]) -> dict[int, list[Member]]:
    """Find an address of each host that all other hosts can reach.

    Return a mapping from the index of each unreachable host to the hosts that cannot reach it. Hosts that do
    not reply count as lost and are omitted.
    """
    if len(members) == 1:
        members[0].own = "127.0.0.1"
        return {}
    listening = pool.ask(members, messages.Listen(), _MOMENT)
    members = [member for member in members if not member.lost]
    for member in members:
        member.ports = listening[member.index].value or {}

    def others(member: Member) -> messages.Reach:
        there = [other for other in members if other is not member]
        return messages.Reach(targets={str(o.index): {"ports": o.ports, "host": ""} for o in there})

    replies = pool.ask(members, others, _MOMENT)
    missed = {}
    for member in (member for member in members if not member.lost):
        by_host = {
            other: sources((replies[other.index].value or {}).get(str(member.index), {}).get("tried", {}))
            for other in members
            if other is not member and not other.lost
        }
        member.own = best_address(member.ports, list(by_host.values())) or ""
        if not member.own:
            missed[member.index] = [other for other, found in by_host.items() if not found] or list(by_host)
    return missed


def least_connected(pool: HostPool, missed: Mapping[int, Sequence[Member]]) -> Member:
    """Return the host with the most failed connections."""
    broken = Counter(index for index, others in missed.items() for _ in others)
    broken.update(other.index for others in missed.values() for other in others)
    return pool.members[max(broken, key=lambda index: (broken[index], index))]


def must(pool: HostPool, members: Sequence[Member], command: Commands[A]) -> dict[int, A]:
    """Send a command to hosts, and return the replies by host index; raise a UserError if any host fails."""
    replies = pool.ask(members, command)
    refuse_lost(members)
    found = [f"{m.name}: {text}" for m in members if m.index in replies for text in replies[m.index].problems]
    if found:
        raise UserError(dict.fromkeys(found))
    return replies


def refuse_lost(members: Sequence[Member]) -> None:
    if lost := [f"{m.name}: {m.lost}; check that it is up and try again" for m in members if m.lost]:
        raise UserError(lost)


def behind(pool: HostPool, members: Sequence[Member], run: str) -> dict[str, str]:
    """Return the hosts that lack the newest checkpoint, each with its progress, such as ``40 of 240``."""
    here = [member for member in members if not member.lost]
    replies = pool.ask(here, messages.Holds(run=run))
    steps = {m.name: replies[m.index].step or 0 for m in here if m.index in replies}
    newest = max(steps.values(), default=0)
    return {name: f"{step:,} of {newest:,}" for name, step in steps.items() if step < newest}


def names(members: Sequence[Member]) -> str:
    return ", ".join(member.name for member in members)
