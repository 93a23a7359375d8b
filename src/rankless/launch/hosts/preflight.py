"""Whether hosts fit together: asked before anything is started, and again of one that comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankless.launch.hosts.gang import Member

# Differing, they change no number: Python only calls what computes.
_MAY_DIFFER = ("python", "NVIDIA driver")


@dataclass(frozen=True)
class Difference:
    """Something that hosts have in different ways.

    Attributes:
        what: the thing.
        values: which host has which.
        fix: what to do.
    """

    what: str
    values: str
    fix: str


def problems(members: Sequence[Member]) -> list[str]:
    """What keeps these hosts from training together, as sentences that name them."""
    found = [f"{member.name}: {text}" for member in members for text in member.facts["problems"]]
    by_machine: dict[str, list[str]] = {}
    for member in members:
        by_machine.setdefault(member.facts.get("machine") or member.name, []).append(member.name)
    found += [
        f"{', '.join(same)}: one and the same machine; give it once, as in {same[0]}:{len(same)}"
        for same in by_machine.values()
        if len(same) > 1
    ]
    return [*found, *(f"the hosts differ in {d.what}: {d.values}; {d.fix}" for d in differences(members))]


def warnings(members: Sequence[Member]) -> list[str]:
    """What differs between hosts and may change bits, as sentences."""
    return [
        f"{d.what} is {d.values}: they round differently, so the weights depend on who computes what; {d.fix}"
        for d in rounding(members)
    ]


def differences(members: Sequence[Member]) -> list[Difference]:
    """What must be the same on all hosts and is not."""
    found = []
    names = dict.fromkeys(name for member in members for name in _versions(member))
    for name in names:
        if name not in _MAY_DIFFER:
            found += _difference(
                members, name, {m.name: _versions(m).get(name, "not there") for m in members}
            )
    found += _difference(members, "the kind of device", {m.name: m.facts["device"] for m in members})
    data = {m.name: str(m.facts["data"])[:12] for m in members if not m.facts["problems"]}
    return [*found, *_difference(members, "the training data (its digest)", data)]


def rounding(members: Sequence[Member]) -> list[Difference]:
    """What differs between hosts and may change bits."""
    found = []
    for section, name, label in (
        ("hardware", "device", "the device"),
        ("instruction_set", "ATen", "the instruction set"),
        ("instruction_set", "oneDNN", "the instruction set of oneDNN"),
    ):
        values = {m.name: m.facts["environment"][section].get(name, "none") for m in members}
        if len(set(values.values())) > 1:
            fix = "use hosts of one kind, or where CPUs differ cpu_isa=avx2"
            found.append(Difference(label, _by_value(values), fix))
    return found


def _versions(member: Member) -> Mapping[str, str]:
    versions: Mapping[str, str] = member.facts["environment"]["versions"]
    return versions


def _difference(members: Sequence[Member], what: str, values: Mapping[str, Any]) -> list[Difference]:
    if len(set(values.values())) < 2:
        return []
    fix = "give hosts that have it alike"
    if what in ("rankless", "rankless source"):
        fix = "add --sync to use this machine's everywhere"
    elif "data" in what:
        fix = "copy the same data to all, or give its path, as in host:4:/mnt/data"
    elif what in _versions(members[0]):
        fix = f"install the same, as in: pip install {what}=={next(iter(values.values()))}"
    return [Difference(what, _by_value(values), fix)]


def _by_value(values: Mapping[str, str]) -> str:
    """``2.14.1 on a, b; 2.13.0 on c``."""
    return "; ".join(
        f"{value} on {', '.join(name for name, other in values.items() if other == value)}"
        for value in dict.fromkeys(values.values())
    )
