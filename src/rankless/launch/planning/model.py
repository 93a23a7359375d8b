"""A performance model that predicts the duration of a step on 1 to 4,096 devices.

The time of one message has a closed form in latency α, bandwidth 1/β and the time of additions. In the fixed
tree (:mod:`rankless.world.exchange`), an all-to-all distributes the shards of all node sums, each rank adds
up one shard, and a ring gathers the sums. For comparison, the model includes a ring all-reduce with the cost
given by Thakur, Rabenseifner and Gropp (2005). The messages of an all-to-all overlap (LogGP, Alexandrov et
al. 1995), so their latency counts once. The messages of a ring wait for each other.

All ranks behave in the same way, so the model follows one rank through its last backward pass. There are
three kinds of exchange: bucket after bucket over NCCL (:func:`buckets_exposed`), in parts over gloo
(:func:`parts_exposed`), and in memory between the CPU ranks of one machine (:func:`memory_exposed`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from rankless.world.exchange import MESSAGE_BYTES
from rankless.world.tree import owned_nodes

MOST = 4096
"""Number of devices in the last row of a plan."""
OVERHEAD = 2e-6
"""Time in seconds to send a message of any size; NCCL's cost model uses 1 to 2 µs (NCCL_NET_OVERHEAD)."""
SIGMA = 0.1
"""Standard deviation of the logarithm of the ranks' computing times."""


@dataclass(frozen=True)
class Bucket:
    """Gradients that are exchanged together."""

    size: int
    ready: float  # fraction (0–1) of the last backward pass after which they are computed


@dataclass(frozen=True)
class Workload:
    """The durations (in seconds) and sizes of a step on one device while all other devices are idle."""

    micro_batches: int
    micro: int  # number of images per micro-batch
    images: int
    load: float  # time to load one micro-batch in one process
    forward: float  # time of the forward pass of one micro-batch
    backward: float  # time of the backward pass of one micro-batch
    last: float  # time of the last backward pass of the step, including the copies into buckets
    update: float  # time after the last backward pass (clipping, optimizer, norms, average)
    add: float  # time to add two gradients, per byte of one gradient
    buckets: tuple[Bucket, ...]  # gradient buckets in the order in which they become ready
    totals: int = 0  # bytes of counts and statistics that are exchanged in addition to the gradients
    norms: tuple[int, ...] = ()  # bytes of each batch norm over the whole batch (batch_norm: sync)
    workers: int = 0  # number of loader processes per rank; 0 loads between the micro-batches

    @property
    def gradients(self) -> int:
        return sum(bucket.size for bucket in self.buckets)

    def computing(self, micro_batches: int) -> float:
        """Return the time in seconds that a rank takes to compute ``micro_batches`` on an idle machine."""
        compute = micro_batches * self.forward + (micro_batches - 1) * self.backward + self.last
        load = micro_batches * self.load
        # Loader processes run in parallel with the step and delay it only if they are slower.
        return self.update + (max(compute, load / self.workers) if self.workers else compute + load)


@dataclass(frozen=True)
class Link:
    """The connection between two devices."""

    bandwidth: float  # bytes per second of each device, and of each machine's link to the network
    latency: float  # seconds from the call that sends a message until its first byte arrives (α)
    overlaps: bool = True  # with computing; False for the loopback interface, where the cores move the bytes
    in_parts: bool = False  # exchanges buckets in parts and overlaps gathers with other operations (gloo)
    copy: float = 0.0  # seconds to copy or add a byte in memory that the ranks share; 0 if they share none

    @property
    def overhead(self) -> float:
        """The time in seconds that a device takes to send a message before it can send the next one."""
        return min(OVERHEAD, self.latency)

    def slowed(self, factor: float) -> Link:
        """Return the link with all times multiplied by ``factor``."""
        return replace(
            self,
            bandwidth=self.bandwidth / factor,
            latency=self.latency * factor,
            copy=self.copy * factor,
        )


@dataclass(frozen=True)
class Machine:
    """The properties of each machine."""

    devices: int  # number of devices per machine
    slots: int | None = None  # number of devices that can compute at the same time; None means all devices
    contention: float = 1.0  # factor by which computing slows down when all slots are busy
    inside: Link | None = None  # between devices of a single machine; None uses the network's link

    def slowdown(self, busy: int) -> float:
        """Return the factor by which computing slows down while ``busy`` devices of a machine compute."""
        if self.slots is None:
            return 1.0
        if busy > self.slots:
            return self.contention * busy / self.slots
        return 1.0 + (self.contention - 1.0) * (busy - 1) / max(self.slots - 1, 1)

    def sharing(self, busy: int) -> float:
        """Return the factor by which the link slows down while ``busy`` devices share the cores."""
        return 1.0 if self.slots is None else max(busy / self.slots, 1.0)


@dataclass(frozen=True)
class Layout:
    """The distribution of ranks over machines, and of the nodes of the summation tree over ranks."""

    world: int
    here: int  # number of ranks per machine
    most: int = 1  # largest number of nodes that a rank owns
    least: int = 1  # smallest number of nodes that a rank owns
    nodes: int = 0

    @property
    def machines(self) -> int:
        return -(-self.world // self.here)


def layout(world: int, devices: int, micro_batches: int) -> Layout:
    """Return the layout of ``world`` ranks on machines with ``devices`` devices each."""
    each, more = divmod(micro_batches, world)
    if not more and not each & (each - 1):
        counts: Sequence[int] = (1,) * world  # every rank owns one node
    else:
        counts = [len(owned_nodes(micro_batches, rank, world)) for rank in range(world)]
    return Layout(world, min(world, devices), max(counts), min(counts), sum(counts))


def all_to_all(layout: Layout, link: Link, size: int) -> float:
    """Return the time in seconds that an all-to-all exchange of node sums of ``size`` bytes each takes."""
    if layout.world == 1:
        return 0.0
    shard = size / layout.world / link.bandwidth  # seconds on the wire
    others = layout.world - 1
    port = max(others * (link.overhead + layout.most * shard), (layout.nodes - layout.least) * shard)
    elsewhere = layout.world - layout.here
    # The devices of a machine share its link to the network.
    leaving = layout.here * elsewhere * layout.most * shard
    arriving = layout.here * (layout.nodes - layout.here * layout.least) * shard if elsewhere else 0.0
    return link.latency + max(port, leaving, arriving)


def gather(layout: Layout, link: Link, size: int) -> float:
    """Return the time in seconds that a ring all-gather of a sum of ``size`` bytes takes."""
    shard = size / layout.world / link.bandwidth
    return (layout.world - 1) * (link.latency + shard)


def adding(layout: Layout, add: float, size: int) -> float:
    """Return the time in seconds that a rank takes to add its shards, at ``add`` seconds per byte."""
    return (layout.nodes - 1) * size / layout.world * add if layout.world > 1 else 0.0


def ring_all_reduce(layout: Layout, link: Link, add: float, size: int) -> float:
    """Return the time in seconds that a ring all-reduce of ``size`` bytes takes."""
    per_round = link.latency + size / layout.world / link.bandwidth
    return (layout.world - 1) * (2 * per_round + size / layout.world * add)


def tree_exposed(work: Workload, layout: Layout, link: Link, backward: float) -> float:
    """Return the time in seconds that the fixed tree's exchange adds to a step."""
    if layout.world == 1:
        return 0.0
    if work.norms:  # no overlap; a norm exchanges twice in the forward pass and once in the backward pass
        meetings = sum(3 * _whole(layout, link, work.add, size) for size in work.norms)
        return meetings + sum(_whole(layout, link, work.add, size) for size in (work.totals, work.gradients))
    totals = adding(layout, work.add, work.totals) + gather(layout, link, work.totals)
    if link.copy:
        return totals + memory_exposed(layout, link, work.gradients)
    if not link.overlaps:
        totals += all_to_all(layout, link, work.totals)
        return totals + sum(_whole(layout, link, work.add, bucket.size) for bucket in work.buckets)
    exposed = parts_exposed if link.in_parts else buckets_exposed
    return totals + exposed(work.buckets, layout, link, work.add, backward, totals=work.totals)


def memory_exposed(layout: Layout, link: Link, size: int) -> float:
    """Return the time in seconds that exchanging ``size`` bytes through shared memory adds to a step.

    A rank copies the other ranks' shards of its sums, adds up its own shard of all sums, and copies the total
    (:mod:`rankless.world.shared_memory`). The cores that compute also do this work, so it does not
    overlap with the backward pass. Only the signals (an all-to-all and a gather of one byte per rank)
    overlap, except those of the last bucket.
    """
    sent = layout.most * (layout.world - 1) / layout.world
    added = (layout.nodes - 1) / layout.world
    signals = all_to_all(layout, link, layout.world) + gather(layout, link, layout.world)
    return signals + (sent + added + 1.0) * size * link.copy


def parts_exposed(
    buckets: Sequence[Bucket], layout: Layout, link: Link, add: float, backward: float, *, totals: int = 0
) -> float:
    """Return the time in seconds from the end of the backward pass to the last bucket's sum, over gloo.

    When a bucket is ready, the all-to-alls of all its parts start, and the backward pass continues. A part
    that has arrived is added and gathered at the next layer. The network transfers messages in the order in
    which they start; during the latency of one message, it transfers others.
    """
    waiting = [(0.0, 0, False, totals)] if totals else []  # start, number, whether it is a gather, size
    added = 0.0  # seconds of additions so far; they interrupt the backward pass
    for bucket in buckets:
        count = max(1, -(-bucket.size // (layout.world * MESSAGE_BYTES)))
        ready = bucket.ready * backward + added
        waiting += [(ready, len(waiting) + part, False, bucket.size // count) for part in range(count)]
        added += adding(layout, add, bucket.size)
    heapq.heapify(waiting)
    free, end = 0.0, backward + added  # times at which the network is free and the rank has all sums
    while waiting:
        start, number, is_gather, size = heapq.heappop(waiting)
        if is_gather:
            latency = (layout.world - 1) * link.latency
            free = max(free, start) + gather(layout, link, size) - latency
            end = max(end, free + latency)
        else:
            arrived = max(free, start) + all_to_all(layout, link, size)
            free = arrived - link.latency
            if number or not totals:  # the totals are gathered after the backward pass
                heapq.heappush(waiting, (arrived + adding(layout, add, size), number, True, size))
    return end - backward


def buckets_exposed(
    buckets: Sequence[Bucket], layout: Layout, link: Link, add: float, backward: float, *, totals: int = 0
) -> float:
    """Return the time in seconds from the end of the backward pass to the last bucket's sum, over NCCL.

    When a bucket is ready, the rank waits for the previous bucket, sums and gathers it, and then continues
    the backward pass (:meth:`rankless.world.reduce.GradientSum.exchange`).
    """
    free = all_to_all(layout, link, totals) if totals else 0.0  # time at which the network is free
    clock = ready = 0.0
    arrived, before = 0.0, 0
    for number, bucket in enumerate(buckets):
        clock += (bucket.ready - ready) * backward
        ready = bucket.ready
        if number:
            clock = max(clock, arrived) + adding(layout, add, before)
            free = max(free, clock) + gather(layout, link, before)
        free = arrived = max(free, clock) + all_to_all(layout, link, bucket.size)
        before = bucket.size
    clock = max(clock, arrived) + adding(layout, add, before)
    free = max(free, clock) + gather(layout, link, before)
    return max(clock + (1.0 - ready) * backward, free) - backward


def ring_exposed(work: Workload, layout: Layout, link: Link, backward: float) -> float:
    """Return the time in seconds that ring all-reduces would add to a step in place of the fixed tree."""
    if layout.world == 1:
        return 0.0
    if work.norms:
        sizes = [size for size in work.norms for _ in range(3)]
        return sum(ring_all_reduce(layout, link, work.add, s) for s in (*sizes, work.totals, work.gradients))
    totals = ring_all_reduce(layout, link, work.add, work.totals)
    if not link.overlaps:
        return totals + sum(ring_all_reduce(layout, link, work.add, bucket.size) for bucket in work.buckets)
    free = 0.0
    for bucket in work.buckets:
        free = max(free, bucket.ready * backward) + ring_all_reduce(layout, link, work.add, bucket.size)
    return max(free, backward) + totals - backward


def _whole(layout: Layout, link: Link, add: float, size: int) -> float:
    return all_to_all(layout, link, size) + adding(layout, add, size) + gather(layout, link, size)


@dataclass(frozen=True)
class Row:
    """The prediction for one number of devices, with times in seconds."""

    devices: int
    machines: int
    batch: int  # images; more than in the recipe if that has too few micro-batches
    step: float  # time of a step with the fixed tree
    network: float  # part of the step spent waiting for the network
    ring: float  # time of a step with ring all-reduces in place of the tree
    images_per_second: float  # speed of all devices together
    epoch: float
    efficiency: float  # speed per device relative to one device alone (0–1)
    loading: float  # images per second that the loader processes of a machine must deliver
    loaders: int | None  # number of loader processes needed per machine; None if loading was not measured

    @property
    def network_share(self) -> float:
        """The fraction (0–1) of the step spent waiting for the network."""
        return self.network / self.step

    @property
    def uneven(self) -> float:
        """The median time of a step if the computing times of devices vary log-normally by :data:`SIGMA`.

        All devices wait for the slowest one.
        """
        slowest = math.exp(SIGMA * NormalDist().inv_cdf(0.5 ** (1 / self.devices)))
        return self.network + (self.step - self.network) * slowest


def row(work: Workload, machine: Machine, link: Link, devices: int) -> Row:
    """Predict a step on ``devices`` devices; the batch grows to at least one micro-batch per device."""
    grown = replace(work, micro_batches=max(work.micro_batches, devices))
    ranks = layout(devices, machine.devices, grown.micro_batches)
    slowdown = machine.slowdown(ranks.here)
    if ranks.machines == 1 and machine.inside is not None:
        link = machine.inside
    link = link.slowed(machine.sharing(ranks.here))
    micro_batches = -(-grown.micro_batches // devices)
    computing = grown.computing(micro_batches) * slowdown
    backward = grown.last * slowdown
    network = tree_exposed(grown, ranks, link, backward)
    ring = computing + ring_exposed(grown, ranks, link, backward)
    batch, step = grown.micro_batches * grown.micro, computing + network
    alone = work.micro_batches * work.micro / work.computing(work.micro_batches)
    speed = batch / step
    loading = speed / ranks.world * ranks.here
    return Row(
        devices=ranks.world,
        machines=ranks.machines,
        batch=batch,
        step=step,
        network=network,
        ring=ring,
        images_per_second=speed,
        epoch=work.images / speed,
        efficiency=speed / (ranks.world * alone),
        loading=loading,
        loaders=math.ceil(loading * work.load / work.micro) if work.load else None,
    )


def rows(work: Workload, machine: Machine, link: Link, requested: int) -> list[Row]:
    """Return a row for every power of two up to 4,096, and for ``requested`` devices."""
    powers = (1 << power for power in range(MOST.bit_length()))
    return [row(work, machine, link, devices) for devices in sorted({*powers, requested})]
