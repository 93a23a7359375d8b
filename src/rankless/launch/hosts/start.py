"""Before the first round: hosts are connected, compared, given the run, and found by each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from rankless.errors import UserError
from rankless.launch.hosts import preflight
from rankless.launch.hosts.gang import Gang, Member, Request
from rankless.launch.hosts.reach import best_address
from rankless.launch.hosts.reasons import remedy
from rankless.launch.hosts.training import Training, Wanted
from rankless.launch.opening import this_start
from rankless.recipe.load import from_json
from rankless.recipe.schema import Recipe

_MOMENT = 60.0  # seconds for what takes a moment


def connect(gang: Gang) -> None:
    """Connect to all hosts.

    Raises:
        UserError: some cannot be used; all of them are named.
    """
    gang.connect(gang.members)
    gang.wait_ready()
    if missing := [member for member in gang.members if member.lost]:
        fixes = {m.index: remedy(m.lost, m.host.address, gang.way.python)[1] for m in missing}
        raise UserError(
            f"{m.name}: cannot be used ({m.lost}); {fixes[m.index]}, or leave the host out" for m in missing
        )


def compare(gang: Gang, training: Training, members: Sequence[Member]) -> list[str]:
    """Ask hosts for facts, and compare them; warnings about what may change bits.

    Raises:
        UserError: they cannot train together.
    """
    replies = must(gang, members, "facts", lambda m: {"recipe": training.json(m), "run": str(training.run)})
    for member in members:
        member.facts = replies[member.index]["facts"]
    known = [member for member in gang.members if member.facts and not member.lost]
    if problems := preflight.problems(known):
        raise UserError(problems)
    return preflight.warnings(known)


def _choose_run(gang: Gang, name: str) -> Path:
    """A directory for a new run that no host has: ``runs/NAME``, or ``runs/NAME-2``, ``-3`` …"""
    for number in count(1):
        run = Path("runs") / (name if number == 1 else f"{name}-{number}")
        replies = must(gang, gang.members, "holds", {"run": str(run)})
        if not any(reply["exists"] for reply in replies.values()):
            return run
    raise RuntimeError("unreachable")


def _newest_holder(gang: Gang, run: Path, *, resume: bool) -> Member:
    """The host that knows most about a run.

    Raises:
        UserError: it is to go on, and none has it.
    """
    replies = must(gang, gang.members, "holds", {"run": str(run)})
    for member in gang.members:
        member.holds = replies[member.index]
    if resume and not any(member.holds["has_run"] for member in gang.members):
        raise UserError(
            f"{run}: nothing to resume on {names(gang.members)}, there is no recipe.yaml and no checkpoint; "
            "give the directory of a run that was started, or leave --resume out"
        )
    return max(gang.members, key=lambda m: (m.holds["step"] or 0, m.holds["has_run"], -m.index))


def _recipe_there(gang: Gang, member: Member, run: Path, overrides: Sequence[str]) -> Recipe:
    """The recipe of a run that a host has, with changes.

    Raises:
        UserError: it is damaged, or errors in the changes.
    """
    request = {"run": str(run), "overrides": list(overrides)}
    return from_json(must(gang, [member], "recipe", request)[member.index]["recipe"])


def training_of(gang: Gang, wanted: Wanted) -> tuple[Training, Member]:
    """What is trained, as far as it is known before the hosts are compared; and who knows most about the run.

    Raises:
        UserError: there is nothing to go on with, or errors in the recipe or its changes.
    """
    run = wanted.run or _choose_run(gang, wanted.name)
    newest = _newest_holder(gang, run, resume=wanted.resume)
    training = Training(
        wanted.recipe or _recipe_there(gang, newest, run, wanted.overrides),
        run,
        wanted.devices,
        wanted.resume,
        wanted.sinks,
        launched={**this_start(), "hosts": [str(member.host) for member in gang.members]},
        dry_run_steps=wanted.dry_run_steps,
    )
    return training, newest


def prepare(gang: Gang, training: Training, member: Member) -> tuple[Training, int | None]:
    """Have a host resolve the recipe, and check it against the run that it holds.

    Returns:
        The training with what was found out; and where the run is finished its last step.

    Raises:
        UserError: what is wrong with recipe, data, or sinks.
    """
    request = {
        "recipe": training.json(member),
        "resume": training.resume,
        "run": str(training.run),
        "sinks": list(training.sinks),
    }
    reply = must(gang, [member], "prepare", request)[member.index]
    recipe = from_json(reply["recipe"])
    recipe = replace(recipe, data=replace(recipe.data, root=training.recipe.data.root))
    return replace(training, recipe=recipe, sinks=reply["sinks"]), reply["finished"]


def begin(gang: Gang, training: Training, member: Member, token: str, *, resume: bool) -> None:
    """Have a host lock its run directory, and make it where it is not there.

    Args:
        token: of this start; hosts that share a directory know each other by it.
        resume: whether a run may be there.

    Raises:
        UserError: it cannot be used.
    """
    must(gang, [member], "begin", partial(training.beginning, token=token, resume=resume))


def must_meet(gang: Gang, members: Sequence[Member]) -> None:
    """Find out at which address each host is reached by the others.

    Raises:
        UserError: some pair cannot connect.
    """
    missed = find_addresses(gang, members)
    refuse_lost(members)
    if missed:
        raise UserError(
            f"{gang.members[index].name}: cannot be reached by {names(others)} at any of its addresses "
            f"({', '.join(gang.members[index].ports) or 'it has none'}); open its ports for the other hosts "
            "(a firewall?), or put them into one network"
            for index, others in missed.items()
        )


def find_addresses(gang: Gang, members: Sequence[Member]) -> dict[int, list[Member]]:
    """Find out at which address each host is reached by the others; some may be lost in it.

    Returns:
        By the indices of hosts that some others do not reach: those.
    """
    if len(members) == 1:
        members[0].own = "127.0.0.1"
        return {}
    listening = gang.ask(members, "listen", None, _MOMENT)
    members = [member for member in members if not member.lost]
    for member in members:
        member.ports = listening[member.index].get("ports", {})

    def others(member: Member) -> dict[str, Any]:
        return {"of": {str(other.index): other.ports for other in members if other is not member}}

    replies = gang.ask(members, "reach", others, _MOMENT)
    answers = {index: reply.get("sources", {}) for index, reply in replies.items()}
    missed = {}
    for member in (member for member in members if not member.lost):
        sources = {
            other: answers[other.index].get(str(member.index), {})
            for other in members
            if other is not member and not other.lost
        }
        member.own = best_address(member.ports, list(sources.values())) or ""
        if not member.own:
            missed[member.index] = [other for other, found in sources.items() if not found] or list(sources)
    return missed


def loneliest(gang: Gang, missed: Mapping[int, Sequence[Member]]) -> Member:
    """Of hosts that do not all reach each other, the one to go on without: in most of the broken pairs."""
    broken = Counter(index for index, others in missed.items() for _ in others)
    broken.update(other.index for others in missed.values() for other in others)
    return gang.members[max(broken, key=lambda index: (broken[index], index))]


def must(gang: Gang, members: Sequence[Member], do: str, request: Request) -> dict[int, dict[str, Any]]:
    """Ask hosts for something that all have to do; the replies by their indices.

    Raises:
        UserError: some have not, each with its name.
    """
    replies = gang.ask(members, do, request)
    refuse_lost(members)
    problems = []
    for member in members:
        found = replies.get(member.index, {}).get("problems", ())
        problems += [f"{member.name}: {problem}" for problem in found]
    if problems:
        raise UserError(dict.fromkeys(problems))
    return replies


def refuse_lost(members: Sequence[Member]) -> None:
    """Raise where hosts have been lost.

    Raises:
        UserError: all of them.
    """
    if lost := [f"{m.name}: {m.lost}; see that it is up, and try again" for m in members if m.lost]:
        raise UserError(lost)


def behind(gang: Gang, members: Sequence[Member], run: str) -> dict[str, str]:
    """The hosts whose newest whole checkpoint is not the newest of all, by name: ``40 of 240``."""
    here = [member for member in members if not member.lost]
    replies = gang.ask(here, "holds", {"run": run})
    steps = {
        member.name: replies[member.index].get("step") or 0 for member in here if member.index in replies
    }
    newest = max(steps.values(), default=0)
    return {name: f"{step:,} of {newest:,}" for name, step in steps.items() if step < newest}


def names(members: Sequence[Member]) -> str:
    """Of hosts, for a message."""
    return ", ".join(member.name for member in members)
