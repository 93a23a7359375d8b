"""What hosts are to each other: alike, at the same time of day, and connected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from rankless.errors import counted
from rankless.launch.doctor.check import Check, error, ok, warning
from rankless.launch.hosts import preflight
from rankless.launch.hosts.gang import Member
from rankless.launch.hosts.reasons import remedy
from rankless.launch.hosts.way import Way

_SKEW = 5.0  # seconds; torchrun's elastic rendezvous leaves out hosts from 15 on


def lost(member: Member, way: Way) -> Check:
    """Why a host cannot be used.

    Args:
        member: given up, with the reason.
        way: how it was to be reached.
    """
    name, fix = remedy(member.lost, member.host.address, way.python)
    return error(name, member.lost, fix)


def alike(members: Sequence[Member]) -> list[Check]:
    """Whether versions, devices, processors and data are the same; ``facts`` of each are there."""
    must, may = preflight.differences(members), preflight.rounding(members)
    found = [error("alike", f"{d.what}: {d.values}", d.fix) for d in must]
    found += [warning("alike", f"{d.what}: {d.values}; they round differently", d.fix) for d in may]
    if found or len(members) < 2:
        return found
    return [ok("alike", f"versions, devices, processors and data of {counted(len(members), 'host')}")]


def clocks(skews: Mapping[str, tuple[float, float]]) -> Check:
    """How far the clocks are apart.

    Args:
        skews: by host, seconds that its clock is ahead of this machine's, and how sure that is (±).
    """
    ahead, behind = max(skews, key=lambda name: skews[name][0]), min(skews, key=lambda name: skews[name][0])
    apart = skews[ahead][0] - skews[behind][0]
    doubt = skews[ahead][1] + skews[behind][1]
    if apart - doubt < _SKEW:
        return ok("clocks", f"at most {max(apart, 0) + doubt:.3f} s apart")
    value = f"{ahead} is {apart:,.1f} s ahead of {behind}: torchrun's elastic rendezvous leaves out the late"
    return warning("clocks", value, f"sudo timedatectl set-ntp true on {ahead} and {behind}")


Answers = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By host: its answer of :func:`rankless.launch.doctor.connections.probe`."""


def connections(answers: Answers) -> list[Check]:
    """Whether every host reaches every other, in both directions, with large packets too."""
    found: list[Check] = []
    used: list[str] = []
    for one, other in ((a, b) for a in answers for b in answers if a != b):
        tried = answers[one][other]["tried"]
        whole = next((address for address, answer in tried.items() if answer.get("large")), None)
        if whole:
            used.append(
                f"{one} → {other} at {whole} by {tried[whole]['interface']} (MTU {tried[whole]['mtu']})"
            )
            continue
        found.append(_unreachable(one, other, tried))
    found += [check for one, other in combinations(answers, 2) for check in _packets(one, other, answers)]
    if not found:
        shown = "; ".join(used[:6]) + (f"; and {len(used) - 6} more" if len(used) > 6 else "")
        return [ok("connections", f"every host reaches every other: {shown}")]
    return found


def _unreachable(one: str, other: str, tried: Mapping[str, Mapping[str, Any]]) -> Check:
    """Why one host does not reach another."""
    small = [(address, answer) for address, answer in tried.items() if "failed" not in answer]
    if small:
        address, answer = small[0]
        name, size = answer["interface"], answer["mtu"]
        return error(
            "connections",
            f"{one} → {other} at {address}: connects, but large packets are lost ({name} has MTU {size})",
            f"ip link set {name} mtu 1500 on {one} and {other}, or have the network carry {size} bytes",
        )
    why = "; ".join(f"{address}: {answer['failed']}" for address, answer in tried.items())
    return error(
        "connections",
        f"{one} → {other}: no connection ({why or f'{other} has no address that others could reach'})",
        f"let TCP from {one} to all ports of {other} through the firewall, or put them into one network",
    )


def _packets(one: str, other: str, answers: Answers) -> list[Check]:
    """A warning where the two ends of a connection have packets of different sizes."""
    there = {answer["mtu"] for answer in answers[one][other]["tried"].values() if answer.get("large")}
    back = {answer["mtu"] for answer in answers[other][one]["tried"].values() if answer.get("large")}
    if not there or not back or there & back:
        return []
    sizes = f"{max(there)} on {one}, {max(back)} on {other}"
    return [warning("MTU", sizes, f"ip link set DEVICE mtu {min(there | back)} on both")]


def resolving(answers: Answers, own: Mapping[str, str]) -> list[Check]:
    """Whether hosts know each other's names: only what torchrun or MPI are given by name depends on it.

    Args:
        answers: as for :func:`connections`.
        own: the name that each host has for itself.
    """
    found = []
    for other, name in own.items():
        missing = [
            one
            for one in answers
            if one != other
            and not any(
                address in answers[one][other]["tried"] for address in answers[one][other]["resolved"]
            )
        ]
        addresses = next((list(answers[one][other]["tried"]) for one in missing), []) or ["ITS-ADDRESS"]
        if missing:
            found.append(
                warning(
                    "names",
                    f"{', '.join(missing)}: {name} does not lead to {other}",
                    f"in /etc/hosts there: {addresses[0]} {name} (only MASTER_ADDR={name} needs it)",
                )
            )
    return found
