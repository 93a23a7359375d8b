"""Check several hosts and the network between them, using the same connections as training."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from rankless.errors import UserError, counted
from rankless.launch.doctor import here
from rankless.launch.doctor.check import AGAIN, Check, error, ok, warning
from rankless.launch.hosts import messages, preflight
from rankless.launch.hosts.channel import Access, remedy
from rankless.launch.hosts.host_pool import A, Commands, HostPool, Member
from rankless.launch.hosts.names import Host
from rankless.launch.hosts.preflight import Training
from rankless.launch.hosts.reach import best_address, sources
from rankless.launch.job import Wanted
from rankless.recipe.schema import Recipe

_SKEW = 5.0  # seconds; torchrun's elastic rendezvous excludes hosts that are off by 15


def lost(member: Member, access: Access) -> Check:
    name, fix = remedy(member.lost, member.host.address, access.python)
    return error(name, member.lost, fix)


def consistency(members: Sequence[Member]) -> list[Check]:
    """Check that all hosts have the same versions, devices, processors and data."""
    must, may = preflight.differences(members), preflight.rounding(members)
    found = [error("consistency", f"{d.what}: {d.values}", d.fix) for d in must]
    found += [warning("consistency", f"{d.what}: {d.values}; rounding differs", d.fix) for d in may]
    if found or len(members) < 2:
        return found
    value = f"the same versions, devices, processors and data on {counted(len(members), 'host')}"
    return [ok("consistency", value)]


def clocks(skews: Mapping[str, tuple[float, float]]) -> Check:
    """Check how much the clocks differ.

    ``skews`` maps each host to a pair: how many seconds its clock is ahead of this machine's clock, and the
    uncertainty of that number.
    """
    ahead, behind = max(skews, key=lambda name: skews[name][0]), min(skews, key=lambda name: skews[name][0])
    apart = skews[ahead][0] - skews[behind][0]
    doubt = skews[ahead][1] + skews[behind][1]
    if apart - doubt < _SKEW:
        return ok("clocks", f"at most {max(apart, 0) + doubt:.3f} s apart")
    value = f"{ahead} is {apart:,.1f} s ahead of {behind}, so torchrun's rendezvous may exclude {behind}"
    return warning("clocks", value, f"run sudo timedatectl set-ntp true on {ahead} and {behind}")


Answers = Mapping[str, Mapping[str, Mapping[str, Any]]]  # results of reach.probe by host


def connections(answers: Answers) -> list[Check]:
    """Check that every host reaches every other host, even with large packets."""
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
        return [ok("connections", f"every host can reach every other host: {shown}")]
    return found


def _unreachable(one: str, other: str, tried: Mapping[str, Mapping[str, Any]]) -> Check:
    small = [(address, answer) for address, answer in tried.items() if "failed" not in answer]
    if small:
        address, answer = small[0]
        name, size = answer["interface"], answer["mtu"]
        return error(
            "connections",
            f"{one} → {other} at {address}: large packets are lost ({name} has MTU {size})",
            f"run ip link set {name} mtu 1500 on {one} and {other}, or configure the network for packets of "
            f"{size} bytes",
        )
    why = "; ".join(f"{address}: {answer['failed']}" for address, answer in tried.items())
    return error(
        "connections",
        f"{one} → {other}: no connection ({why or f'{other} has no address that other hosts can use'})",
        f"allow TCP from {one} to all ports of {other} in the firewall, or connect both to the same network",
    )


def _packets(one: str, other: str, answers: Answers) -> list[Check]:
    there = {answer["mtu"] for answer in answers[one][other]["tried"].values() if answer.get("large")}
    back = {answer["mtu"] for answer in answers[other][one]["tried"].values() if answer.get("large")}
    if not there or not back or there & back:
        return []
    sizes = f"{max(there)} on {one}, {max(back)} on {other}"
    return [warning("MTU", sizes, f"run ip link set DEVICE mtu {min(there | back)} on both hosts")]


def resolving(answers: Answers, own: Mapping[str, str]) -> list[Check]:
    """Check that hosts can resolve each other's ``own`` names, which torchrun and MPI may use."""
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
                    f"{name} does not resolve to {other} on {', '.join(missing)}",
                    f"to use MASTER_ADDR={name}, add this line to /etc/hosts on {', '.join(missing)}: "
                    f"{addresses[0]} {name}",
                )
            )
    return found


_SLOW = 100e6  # bytes/s; a link of 1 Gbit/s carries 117e6


def bandwidth(timing: Mapping[str, Any], hosts: int) -> float:
    """Return the bytes per second that each host sends during a collective."""
    passes = 2 if timing["name"] == "all-reduce" else 1
    return float(passes * (hosts - 1) / hosts * timing["size"] / timing["seconds"])


def network(timings: Sequence[Mapping[str, Any]], hosts: int) -> Check:
    """Return a finding about latency and bandwidth: a warning if the bandwidth is below 1 Gbit/s."""
    latency = min(timing["seconds"] for timing in timings)
    largest = max((one for one in timings if one["name"] == "all-reduce"), key=lambda one: one["size"])
    rate = bandwidth(largest, hosts)
    value = f"{1000 * latency:.2f} ms, {rate / 1e6:,.0f} MB/s between {counted(hosts, 'host')} (gloo)"
    if rate < _SLOW:
        fix = "check the link speed with ethtool DEVICE, and connect the hosts to the same switch by cable"
        return warning("network", f"{value}: slower than 1 Gbit/s", fix)
    return ok("network", value)


def step(alone: float, exchange: float, shares: Sequence[int]) -> Check:
    """Estimate the duration of a step, and the network's share of it.

    ``alone`` is the time in seconds that a step takes on the first host, and ``exchange`` is the time to
    exchange the gradients between one rank of each host. Both estimates are upper bounds, because computation
    and communication partly overlap.
    """
    computing = alone * shares[0] / sum(shares)
    sending = exchange * max(shares)
    total = computing + sending
    value = (
        f"about {1000 * total:,.0f} ms with {sum(shares)} ranks on {counted(len(shares), 'host')} "
        f"(network: {1000 * sending:,.0f} ms); {1000 * alone:,.0f} ms with {counted(shares[0], 'rank')} "
        "on the first host"
    )
    if total >= alone:
        fix = "use a faster network, a larger batch.images, or only the first host"
        return warning("step", f"{value}: using all hosts is slower", fix)
    return ok("step", value)


def speed(timings: Sequence[Mapping[str, Any]], hosts: int) -> list[str]:
    """Return a table of the measurements between hosts, with a row per size and a column per collective."""
    names = list(dict.fromkeys(timing["name"] for timing in timings))
    if not timings:
        return []
    found = {(timing["name"], timing["size"]): timing for timing in timings}
    table = ["", "size    " + "".join(f"{name:>26}" for name in names)]
    for size in sorted({timing["size"] for timing in timings}):
        row = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        cells = ""
        for name in names:
            timing = found.get((name, size))
            text = (
                timing and f"{1000 * timing['seconds']:,.2f} ms {bandwidth(timing, hosts) / 1e6:>8,.1f} MB/s"
            )
            cells += f"{text or 'skipped':>26}"
        table.append(f"{row:8}{cells}")
    return table


_LOOK, _TRY, _MEASURE, _STEPS = 60.0, 30.0, 90.0, 240.0  # seconds for a command on a host
_CLOCKS = 5  # readings of each clock


@dataclass
class Examination:
    """The findings about the hosts and the network between them."""

    checks: list[Check] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)  # of rankless.world.speed.Timing
    exchange: float = 0.0  # seconds to exchange the gradients of a step with one rank per host
    step: float = 0.0  # seconds per step on the first host alone; 0 if not measured
    measured: int = 0  # number of hosts that took part in the timings
    shares: list[int] = field(default_factory=list)  # number of ranks on each host


def examine(hosts: Sequence[Host], recipe: Recipe | None, run: Path, access: Access) -> Examination:
    """Check the hosts as far as possible; problems become findings, not exceptions.

    If there is a recipe, also check its data, and estimate the network's share of a step.
    """
    doctor = _Doctor(HostPool(hosts, access), recipe, run)
    try:
        with redirect_stdout(sys.stderr):  # keeps the output of hosts out of the report
            doctor.run_checks()
    finally:
        doctor.pool.close()
    found = doctor.found
    if found.timings:
        found.checks.append(network(found.timings, found.measured))
    if found.step and found.exchange:
        found.checks.append(step(found.step, found.exchange, found.shares))
    return found


class _Doctor:
    def __init__(self, pool: HostPool, recipe: Recipe | None, run: Path) -> None:
        self.pool, self.recipe, self.run = pool, recipe, run
        self.training = Training(Wanted(recipe, ""), recipe, run) if recipe else None
        self.found = Examination()
        self.reported: set[int] = set()

    def run_checks(self) -> None:
        self.pool.connect(self.pool.members)
        self.pool.wait_ready()
        self._report_lost()
        own_checks = messages.Doctor(run=str(self.run), threads=self.recipe.threads if self.recipe else 1)
        for index, reply in self._ask(own_checks, _LOOK).items():
            for check in reply.value:
                self._add(self.pool.members[index], Check(**check))
        self._facts()
        if members := self._there():
            self.found.checks += consistency([member for member in members if member.facts])
            self._clocks(members)
        if len(self._there()) > 1 and self._connections(self._there()):
            self._speed([member for member in self._there() if member.facts and member.own])

    def _there(self) -> list[Member]:
        return [member for member in self.pool.members if member.is_ready and not member.lost]

    def _report_lost(self) -> None:
        for member in self.pool.members:
            if member.lost and member.index not in self.reported:
                self.reported.add(member.index)
                self._add(member, lost(member, self.pool.access))

    def _add(self, member: Member, check: Check) -> None:
        self.found.checks.append(replace(check, host=member.name))

    def _ask(
        self, command: Commands[A], seconds: float, members: Sequence[Member] | None = None
    ) -> dict[int, A]:
        """Send a command to hosts, report failures, and return the successful replies by host index."""
        members = self._there() if members is None else members
        replies = self.pool.ask(members, command, seconds)
        self._report_lost()
        for member in members:
            for problem in replies[member.index].problems if member.index in replies else ():
                self._add(member, error(member.doing, problem, AGAIN))
        return {index: reply for index, reply in replies.items() if not reply.problems}

    def _facts(self) -> None:
        def command(member: Member) -> messages.Facts:
            text = self.training.json(member) if self.training else ""
            return messages.Facts(recipe=text, run=str(self.run))

        for index, reply in self._ask(command, here.DATA_LIMIT).items():
            member = self.pool.members[index]
            member.facts = facts = reply.value
            if self.recipe:
                root = member.host.data or self.recipe.data.root
                self._add(member, here.data_finding(root, facts["data"], facts["problems"]))

    def _clocks(self, members: Sequence[Member]) -> None:
        skews: dict[str, tuple[float, float]] = {}
        for member in members:
            for _ in range(_CLOCKS):
                began, clock = time.monotonic(), time.time()
                reply = self._ask(messages.Clock(), _TRY, [member]).get(member.index)
                if reply is None:
                    break
                half = (time.monotonic() - began) / 2
                if member.name not in skews or half < skews[member.name][1]:
                    skews[member.name] = (reply.value - clock - half, half)
        if len(skews) > 1:
            self.found.checks.append(clocks(skews))

    def _connections(self, members: list[Member]) -> bool:
        for index, reply in self._ask(messages.Listen(echo=True), _TRY).items():
            self.pool.members[index].ports = reply.value
        members = [member for member in members if not member.lost]
        own = {member.name: member.facts.get("host", member.name) for member in members}

        def probe(member: Member) -> messages.Reach:
            others = [other for other in members if other is not member]
            targets = {o.name: {"ports": o.ports, "host": own[o.name]} for o in others}
            return messages.Reach(targets=targets, large=True)

        replies = self._ask(probe, _TRY, members)
        members = [member for member in members if member.index in replies]
        answers = {member.name: replies[member.index].value for member in members}
        checks = connections(answers)
        self.found.checks += [*checks, *resolving(answers, {name: own[name] for name in answers})]
        for member in members:
            others = [other.name for other in members if other is not member]
            working = [sources(answers[other][member.name]["tried"]) for other in others]
            member.own = best_address(member.ports, working) or ""
        return all(check.level != "error" for check in checks)

    def _speed(self, members: list[Member]) -> None:
        if len(members) < 2:
            return
        lead = members[0]
        parameters = micro_batches = 0
        training = self.training
        if training and self._share(training, members):
            replies = self._ask(messages.Parameters(recipe=training.json(lead)), _LOOK, [lead])
            parameters = int(replies[lead.index].value) if replies else 0
            micro_batches = training.recipe.batch.micro_batches
        opened = self._ask(messages.OpenStore(address=lead.own), _TRY, [lead]).get(lead.index)
        if opened is None:
            return
        port = opened.value

        def command(member: Member) -> messages.Speed:
            return messages.Speed(
                parameters=parameters,
                micro_batches=micro_batches,
                own=member.own,
                address=lead.own,
                port=port,
                rank=members.index(member),
                size=len(members),
            )

        measured = self._ask(command, _MEASURE, members)
        if len(measured) == len(members):
            self.found.measured = len(members)
            self.found.timings = measured[lead.index].timings
            self.found.exchange = measured[lead.index].exchange
            if training and self.found.exchange:
                self._step(training, lead)

    def _share(self, training: Training, members: Sequence[Member]) -> bool:
        try:
            shares = training.shares(members)
        except UserError as problem:
            fix = "correct the recipe or --hosts"
            self.found.checks += [error("recipe", text, fix) for text in problem.problems]
            return False
        self.found.shares = [shares[member.index] for member in members]
        return True

    def _step(self, training: Training, lead: Member) -> None:
        command = messages.Step(recipe=training.json(lead), devices=self.found.shares[0])
        reply = self.pool.ask([lead], command, _STEPS).get(lead.index, messages.Value(value=0.0))
        self.found.step = reply.value or 0.0
        if not self.found.step:
            why = lead.lost or "; ".join(reply.problems)
            fix = (
                "check that the recipe trains on this host alone, or use a smaller batch.images if it is slow"
            )
            self._add(lead, warning("step", f"could not be measured ({why})", fix))
