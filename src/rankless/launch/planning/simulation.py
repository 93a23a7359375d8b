"""A discrete-event simulation of a step's exchange, message by message, to check the closed form.

Every device sends one message at a time over its port. The devices of a machine share one network port in
each direction, first come, first served. Switching is cut-through: a message occupies the sender's and the
receiver's port at the same time, apart from the latency. A rank acts like
:meth:`rankless.world.reduce.GradientSum.exchange`. Its collectives run in issue order, as on an NCCL stream.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from rankless.launch.planning.model import Bucket, Gang, Link, Machine, Workload, adding, buckets_exposed

_TURN, _SENT, _ARRIVING, _ARRIVED = range(4)  # kinds of events
Action = tuple[str, float]


@dataclass
class _Collective:
    """One rank's part of a collective: an all-to-all, or a ring."""

    is_ring: bool
    seconds: float  # one message on the wire
    started: bool = False
    sent: int = 0
    received: int = 0
    latest: float = 0.0  # time when the last message sent so far arrives
    is_sent: bool = False
    is_starved: bool = False  # the next part to pass on has not arrived
    is_done: bool = False


def stragglers(world: int, sigma: float, seed: int) -> list[float]:
    """Draw a slowdown factor for each of ``world`` ranks from a log-normal distribution.

    The median is 1; ``sigma`` is the standard deviation of the logarithm.
    """
    return [float(factor) for factor in np.exp(np.random.default_rng(seed).normal(0.0, sigma, world))]


class Simulation:
    """A simulation of one backward pass with its exchange.

    Args:
        ranks: the ranks; each owns one node of the tree.
        link: the link between the ranks.
        buckets: the gradient buckets, in the order in which they become ready.
        add: seconds to add two gradients, per byte of one.
        backward: seconds of the backward pass.
        slow: the slowdown factor of each rank.
    """

    def __init__(
        self,
        ranks: Gang,
        link: Link,
        buckets: Sequence[Bucket],
        add: float,
        backward: float,
        slow: Sequence[float],
    ) -> None:
        self.ranks, self.link, self.buckets, self.add, self.backward = ranks, link, buckets, add, backward
        self.others = ranks.world - 1
        self.events: list[tuple[float, int, int, int, int]] = []  # time, number, kind, rank, collective
        self.numbers = 0
        self.leaving = [0.0] * ranks.machines  # time when a machine's port to the network is free
        self.arriving = [0.0] * ranks.machines
        self.port = [0.0] * ranks.world
        self.current = [0] * ranks.world  # each rank's current or next collective
        self.issued = [0] * ranks.world
        self.waiting = [-1] * ranks.world
        self.ended = [0.0] * ranks.world
        # In issue order: the all-to-all and the ring of each bucket.
        self.collectives = [
            [
                _Collective(is_ring, bucket.size / ranks.world / link.bandwidth)
                for bucket in buckets
                for is_ring in (False, True)
            ]
            for _ in range(ranks.world)
        ]
        self.programs = [self._rank(rank, factor) for rank, factor in enumerate(slow)]

    def run(self) -> float:
        """Return the seconds until all ranks have all sums."""
        if not self.others:
            return self.backward
        for rank in range(self.ranks.world):
            self._event(0.0, _TURN, rank)
        handlers = {_SENT: self._sent, _ARRIVING: self._arriving, _ARRIVED: self._arrived}
        while self.events:
            time, _, kind, rank, number = heapq.heappop(self.events)
            if kind == _TURN:
                self._turn(time, rank)
            else:
                handlers[kind](time, rank, number)
        return max(self.ended)

    def _event(self, time: float, kind: int, rank: int, number: int = -1) -> None:
        self.numbers += 1
        heapq.heappush(self.events, (time, self.numbers, kind, rank, number))

    def _rank(self, rank: int, factor: float) -> Generator[Action, None, None]:
        """Yield the actions of a rank: compute, begin a collective or wait for one."""
        ready = 0.0
        for number, bucket in enumerate(self.buckets):
            yield "compute", (bucket.ready - ready) * self.backward * factor
            ready = bucket.ready
            if number:
                yield from self._combine(number - 1)
            yield "begin", 2 * number
        yield from self._combine(len(self.buckets) - 1)
        yield "compute", (1.0 - ready) * self.backward * factor
        yield "wait", 2 * len(self.buckets) - 1

    def _combine(self, number: int) -> Generator[Action, None, None]:
        yield "wait", 2 * number
        yield "compute", adding(self.ranks, self.add, self.buckets[number].size)
        yield "begin", 2 * number + 1

    def _turn(self, time: float, rank: int) -> None:
        """Advance a rank until it computes or waits."""
        for action, value in self.programs[rank]:
            if action == "compute":
                self._event(time + value, _TURN, rank)
                return
            if action == "begin":
                self.issued[rank] += 1
                self._start(time, rank)
            elif not self.collectives[rank][int(value)].is_done:
                self.waiting[rank] = int(value)
                return
        self.ended[rank] = time

    def _start(self, time: float, rank: int) -> None:
        """Start the rank's next collective if the rank has issued it."""
        number = self.current[rank]
        if number < self.issued[rank]:
            collective = self.collectives[rank][number]
            if not collective.started:
                collective.started = True
                self._send(time, rank, number)

    def _send(self, time: float, rank: int, number: int) -> None:
        """Send the rank's next message, and schedule the event that frees its port."""
        collective, world = self.collectives[rank][number], self.ranks.world
        collective.sent += 1
        to = (rank + (1 if collective.is_ring else collective.sent)) % world
        begins = time + self.link.overhead
        self.port[rank] = begins + collective.seconds
        self._event(self.port[rank], _SENT, rank, number)
        here, there = rank // self.ranks.here, to // self.ranks.here
        if here == there:
            self._arrives(self.port[rank] + self.link.latency, to, number)
            return
        begins = max(begins, self.leaving[here])
        self.leaving[here] = begins + collective.seconds
        self._event(begins + self.link.latency, _ARRIVING, to, number)

    def _sent(self, time: float, rank: int, number: int) -> None:
        """Send the next message; in a ring, wait for the part to pass on."""
        collective = self.collectives[rank][number]
        if collective.sent == self.others:
            collective.is_sent = True
            self._finish_if_done(time, rank, number)
        elif not collective.is_ring or collective.sent <= collective.received:
            self._send(time, rank, number)
        else:
            collective.is_starved = True

    def _arriving(self, time: float, rank: int, number: int) -> None:
        """Reserve the machine's incoming port for a message from another machine."""
        machine = rank // self.ranks.here
        self.arriving[machine] = max(time, self.arriving[machine]) + self.collectives[rank][number].seconds
        self._arrives(self.arriving[machine], rank, number)

    def _arrives(self, time: float, rank: int, number: int) -> None:
        """Schedule the arrival of a message; in an all-to-all, only that of the last one."""
        collective = self.collectives[rank][number]
        if collective.is_ring:
            self._event(time, _ARRIVED, rank, number)
            return
        collective.received += 1
        collective.latest = max(collective.latest, time)
        if collective.received == self.others:
            collective.received -= 1
            self._event(collective.latest, _ARRIVED, rank, number)

    def _arrived(self, time: float, rank: int, number: int) -> None:
        collective = self.collectives[rank][number]
        collective.received += 1
        if collective.is_starved:
            collective.is_starved = False
            self._send(time, rank, number)
        elif collective.received == self.others:
            self._finish_if_done(time, rank, number)

    def _finish_if_done(self, time: float, rank: int, number: int) -> None:
        collective = self.collectives[rank][number]
        if not collective.is_sent or collective.received < self.others:
            return
        collective.is_done = True
        self.current[rank] = number + 1
        self._start(time, rank)
        if self.waiting[rank] == number:
            self.waiting[rank] = -1
            self._turn(time, rank)


MOST_RANKS = 64
"""Largest number of simulated ranks; the number of messages grows with its square."""
SIGMA = 0.1
"""Standard deviation of the logarithm of the ranks' computing times."""


@dataclass(frozen=True)
class Simulated:
    """The duration of a backward pass with its exchange, in seconds.

    Attributes:
        ranks: number of simulated ranks.
        model: duration by the closed form.
        simulated: duration by the simulation.
        stragglers: simulated duration with ranks of different speeds (:data:`SIGMA`).
    """

    ranks: int
    model: float
    simulated: float
    stragglers: float


def simulated(work: Workload, machine: Machine, link: Link, devices: int) -> Simulated | None:
    """Simulate the exchange of gradients on at most 64 devices; None for one device or without overlap."""
    world = min(devices, MOST_RANKS)
    if world == 1 or not link.overlaps or work.norms:
        return None
    ranks = Gang(world, min(world, machine.devices), 1, 1, world)
    backward = work.last * machine.slowdown(ranks.here)

    def run(sigma: float) -> float:
        slow = stragglers(world, sigma, seed=0)
        return Simulation(ranks, link, work.buckets, work.add, backward, slow).run()

    model = backward + buckets_exposed(work.buckets, ranks, link, work.add, backward)
    return Simulated(world, model, run(0.0), run(SIGMA))
