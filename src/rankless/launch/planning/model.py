"""The performance model of a plan: it predicts the duration of a step on 1 to 4,096 devices.

The time of one message is a closed form of latency α, bandwidth 1/β and the time of additions. In the fixed
tree (:mod:`rankless.world.exchange`) an all-to-all distributes the shards of all node sums, each rank adds up
one shard, and a ring gathers the sums. For comparison, the model includes a ring all-reduce, with its cost
according to Thakur, Rabenseifner and Gropp (2005). The messages of an all-to-all overlap (LogGP, Alexandrov
et al. 1995), so their latency counts once. The messages of a ring wait for each other.

The model follows one rank through its last backward pass, because all ranks are alike. There are three
kinds of exchange: bucket after bucket over NCCL (:func:`buckets_exposed`), in parts over gloo
(:func:`parts_exposed`), and through memory between the CPU ranks of one machine (:func:`memory_exposed`).
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
"""Seconds to send a message of any size; NCCL's cost model counts 1 to 2 µs (NCCL_NET_OVERHEAD)."""
SIGMA = 0.1
"""Standard deviation of the logarithm of the ranks' computing times, for the effect of slow ranks."""


@dataclass(frozen=True)
class Bucket:
    """Gradients that are exchanged together.

    Attributes:
        size: number of bytes.
        ready: fraction (0–1) of the last backward pass after which they are computed.
    """

    size: int
    ready: float


@dataclass(frozen=True)
class Workload:
    """One step of a recipe on a device while its machine's other devices are idle; times are in seconds.

    Attributes:
        micro_batches: number of micro-batches per step.
        micro: number of images per micro-batch.
        images: number of images per epoch.
        load: time to load one micro-batch in one process.
        forward, backward: time of each pass over one micro-batch.
        last: time of the step's last backward pass, including the copies into buckets.
        update: time after the last backward pass: clipping, optimizer, norms, average.
        add: time to add two gradients, per byte of one.
        buckets: the gradient buckets, in the order in which they become ready.
        totals: bytes of counts and statistics that are exchanged in addition to the gradients.
        norms: bytes of each batch norm that is computed over the whole batch (``batch_norm: sync``).
        workers: number of loader processes per rank; 0 loads between the micro-batches.
    """

    micro_batches: int
    micro: int
    images: int
    load: float
    forward: float
    backward: float
    last: float
    update: float
    add: float
    buckets: tuple[Bucket, ...]
    totals: int = 0
    norms: tuple[int, ...] = ()
    workers: int = 0

    @property
    def gradients(self) -> int:
        """The number of bytes of one set of gradients."""
        return sum(bucket.size for bucket in self.buckets)

    def with_micro_batches(self, count: int) -> Workload:
        """Return the workload with a global batch of ``count`` micro-batches."""
        return replace(self, micro_batches=count)

    def computing(self, micro_batches: int) -> float:
        """Return the seconds that a rank needs for ``micro_batches`` on an otherwise idle machine."""
        compute = micro_batches * self.forward + (micro_batches - 1) * self.backward + self.last
        load = micro_batches * self.load
        # Loader processes run in parallel with the step and delay it only if they are slower.
        return self.update + (max(compute, load / self.workers) if self.workers else compute + load)


@dataclass(frozen=True)
class Link:
    """The connection between two devices.

    Attributes:
        bandwidth: bytes per second of each device, and of each machine's link to the network.
        latency: seconds until the first byte of a message arrives, from the call that sends it (α).
        overlaps: whether transfers overlap with computing; false for the loopback interface, where the cores
            move the bytes.
        in_parts: whether buckets are exchanged in parts, and gathers run beside other operations (gloo).
        copy: seconds to copy or add a byte in memory that the ranks share; 0 if they share none.
    """

    bandwidth: float
    latency: float
    overlaps: bool = True
    in_parts: bool = False
    copy: float = 0.0

    @property
    def overhead(self) -> float:
        """The seconds that a device needs to send one message of any size before it can send the next."""
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
    """The properties of a machine, which are the same for all machines.

    Attributes:
        devices: number of devices per machine.
        slots: number of devices that can compute at the same time; None means all of them.
        contention: factor by which computing slows down when all slots are busy.
        inside: the link between devices if all are on one machine; None means the network's.
    """

    devices: int
    slots: int | None = None
    contention: float = 1.0
    inside: Link | None = None

    def slowdown(self, busy: int) -> float:
        """Return the factor by which ``busy`` devices of a machine slow each other down."""
        if self.slots is None:
            return 1.0
        if busy > self.slots:
            return self.contention * busy / self.slots
        return 1.0 + (self.contention - 1.0) * (busy - 1) / max(self.slots - 1, 1)

    def sharing(self, busy: int) -> float:
        """Return the factor by which ``busy`` devices slow down the link because they share the cores."""
        return 1.0 if self.slots is None else max(busy / self.slots, 1.0)


@dataclass(frozen=True)
class Gang:
    """The distribution of ranks over machines, and of the summation tree's nodes over ranks.

    Attributes:
        world: number of ranks.
        here: number of ranks per machine.
        most, least: largest and smallest number of nodes that a rank owns.
        nodes: total number of nodes.
    """

    world: int
    here: int
    most: int = 1
    least: int = 1
    nodes: int = 0

    @property
    def machines(self) -> int:
        """The number of machines."""
        return -(-self.world // self.here)


def gang(world: int, devices: int, micro_batches: int) -> Gang:
    """Return how ``world`` ranks on machines with ``devices`` devices share ``micro_batches``."""
    each, more = divmod(micro_batches, world)
    if not more and not each & (each - 1):
        counts: Sequence[int] = (1,) * world  # every rank owns one node
    else:
        counts = [len(owned_nodes(micro_batches, rank, world)) for rank in range(world)]
    return Gang(world, min(world, devices), max(counts), min(counts), sum(counts))


def all_to_all(gang: Gang, link: Link, size: int) -> float:
    """Return the seconds until every rank has its shard of all node sums of ``size`` bytes each."""
    if gang.world == 1:
        return 0.0
    shard = size / gang.world / link.bandwidth  # seconds on the wire
    others = gang.world - 1
    port = max(others * (link.overhead + gang.most * shard), (gang.nodes - gang.least) * shard)
    elsewhere = gang.world - gang.here
    # The devices of a machine share its link to the network.
    leaving = gang.here * elsewhere * gang.most * shard
    arriving = gang.here * (gang.nodes - gang.here * gang.least) * shard if elsewhere else 0.0
    return link.latency + max(port, leaving, arriving)


def gather(gang: Gang, link: Link, size: int) -> float:
    """Return the seconds that a ring all-gather of a sum of ``size`` bytes takes."""
    shard = size / gang.world / link.bandwidth
    return (gang.world - 1) * (link.latency + shard)


def adding(gang: Gang, add: float, size: int) -> float:
    """Return the seconds that a rank needs to add up its shard of all node sums; ``add`` is per byte."""
    return (gang.nodes - 1) * size / gang.world * add if gang.world > 1 else 0.0


def ring_all_reduce(gang: Gang, link: Link, add: float, size: int) -> float:
    """Return the seconds that a ring all-reduce of ``size`` bytes takes."""
    per_round = link.latency + size / gang.world / link.bandwidth
    return (gang.world - 1) * (2 * per_round + size / gang.world * add)


def tree_exposed(work: Workload, gang: Gang, link: Link, backward: float) -> float:
    """Return the seconds that the fixed tree's exchange adds to a step."""
    if gang.world == 1:
        return 0.0
    if work.norms:  # no overlap; a norm exchanges twice in the forward pass and once in the backward pass
        meetings = sum(3 * _whole(gang, link, work.add, size) for size in work.norms)
        return meetings + sum(_whole(gang, link, work.add, size) for size in (work.totals, work.gradients))
    totals = adding(gang, work.add, work.totals) + gather(gang, link, work.totals)
    if link.copy:
        return totals + memory_exposed(gang, link, work.gradients)
    if not link.overlaps:
        totals += all_to_all(gang, link, work.totals)
        return totals + sum(_whole(gang, link, work.add, bucket.size) for bucket in work.buckets)
    exposed = parts_exposed if link.in_parts else buckets_exposed
    return totals + exposed(work.buckets, gang, link, work.add, backward, totals=work.totals)


def memory_exposed(gang: Gang, link: Link, size: int) -> float:
    """Return the seconds that an exchange of ``size`` bytes through shared memory adds to a step.

    A rank copies the others' shards of its sums, adds up its own shard of all sums, and copies the total
    (:mod:`rankless.world.shared_memory`). The computing cores do this work, so it does not overlap. Only the
    signals overlap, except those of the last bucket: an all-to-all and a gather of one byte per rank.
    """
    sent = gang.most * (gang.world - 1) / gang.world
    added = (gang.nodes - 1) / gang.world
    signals = all_to_all(gang, link, gang.world) + gather(gang, link, gang.world)
    return signals + (sent + added + 1.0) * size * link.copy


def parts_exposed(
    buckets: Sequence[Bucket], gang: Gang, link: Link, add: float, backward: float, *, totals: int = 0
) -> float:
    """Return the seconds from the end of the backward pass until the last bucket is summed, over gloo.

    When a bucket is ready, the all-to-alls of all its parts start, and the backward pass continues. A part
    that has arrived is added and gathered at the next layer. The network carries messages in the order in
    which they start; while it waits for the first byte of one, it carries others.
    """
    waiting = [(0.0, 0, False, totals)] if totals else []  # start, number, whether it is a gather, size
    added = 0.0  # seconds of additions so far; they interrupt the backward pass
    for bucket in buckets:
        count = max(1, -(-bucket.size // (gang.world * MESSAGE_BYTES)))
        ready = bucket.ready * backward + added
        waiting += [(ready, len(waiting) + part, False, bucket.size // count) for part in range(count)]
        added += adding(gang, add, bucket.size)
    heapq.heapify(waiting)
    free, end = 0.0, backward + added  # when the network is free, and when the rank has all sums
    while waiting:
        start, number, is_gather, size = heapq.heappop(waiting)
        if is_gather:
            latency = (gang.world - 1) * link.latency
            free = max(free, start) + gather(gang, link, size) - latency
            end = max(end, free + latency)
        else:
            arrived = max(free, start) + all_to_all(gang, link, size)
            free = arrived - link.latency
            if number or not totals:  # the totals are gathered after the backward pass
                heapq.heappush(waiting, (arrived + adding(gang, add, size), number, True, size))
    return end - backward


def buckets_exposed(
    buckets: Sequence[Bucket], gang: Gang, link: Link, add: float, backward: float, *, totals: int = 0
) -> float:
    """Return the seconds from the end of the backward pass until the last bucket is summed, over NCCL.

    When a bucket is ready, the rank waits for the previous bucket, sums and gathers it, and then continues
    the backward pass (:meth:`rankless.world.reduce.GradientSum.exchange`).
    """
    free = all_to_all(gang, link, totals) if totals else 0.0  # when the network is free
    clock = ready = 0.0
    arrived, before = 0.0, 0
    for number, bucket in enumerate(buckets):
        clock += (bucket.ready - ready) * backward
        ready = bucket.ready
        if number:
            clock = max(clock, arrived) + adding(gang, add, before)
            free = max(free, clock) + gather(gang, link, before)
        free = arrived = max(free, clock) + all_to_all(gang, link, bucket.size)
        before = bucket.size
    clock = max(clock, arrived) + adding(gang, add, before)
    free = max(free, clock) + gather(gang, link, before)
    return max(clock + (1.0 - ready) * backward, free) - backward


def ring_exposed(work: Workload, gang: Gang, link: Link, backward: float) -> float:
    """Return the seconds that ring all-reduces would add to a step in place of the fixed tree."""
    if gang.world == 1:
        return 0.0
    if work.norms:
        sizes = [size for size in work.norms for _ in range(3)]
        return sum(ring_all_reduce(gang, link, work.add, s) for s in (*sizes, work.totals, work.gradients))
    totals = ring_all_reduce(gang, link, work.add, work.totals)
    if not link.overlaps:
        return totals + sum(ring_all_reduce(gang, link, work.add, bucket.size) for bucket in work.buckets)
    free = 0.0
    for bucket in work.buckets:
        free = max(free, bucket.ready * backward) + ring_all_reduce(gang, link, work.add, bucket.size)
    return max(free, backward) + totals - backward


def _whole(gang: Gang, link: Link, add: float, size: int) -> float:
    return all_to_all(gang, link, size) + adding(gang, add, size) + gather(gang, link, size)


@dataclass(frozen=True)
class Row:
    """The prediction for one number of devices; times are in seconds.

    Attributes:
        devices, machines: number of devices and machines.
        batch: global batch in images; larger than the recipe's if the recipe has too few micro-batches.
        step: time of a step with the fixed tree.
        network: part of the step spent waiting for the network.
        ring: time of a step with ring all-reduces in place of the tree.
        images_per_second: speed of all devices together.
        epoch: time of one epoch.
        efficiency: speed per device relative to one device alone (0–1).
        loading: images per second that the loaders of a machine must deliver.
        loaders: number of loader processes needed per machine; None if loading was not measured.
    """

    devices: int
    machines: int
    batch: int
    step: float
    network: float
    ring: float
    images_per_second: float
    epoch: float
    efficiency: float
    loading: float
    loaders: int | None

    @property
    def network_share(self) -> float:
        """The fraction (0–1) of the step spent waiting for the network."""
        return self.network / self.step

    @property
    def uneven(self) -> float:
        """The time of a step if the devices' own times vary by :data:`SIGMA`, log-normally.

        All devices wait for the slowest. This is the median: in half of the steps, all devices are faster.
        """
        slowest = math.exp(SIGMA * NormalDist().inv_cdf(0.5 ** (1 / self.devices)))
        return self.network + (self.step - self.network) * slowest


def row(work: Workload, machine: Machine, link: Link, devices: int) -> Row:
    """Predict a step on ``devices`` devices; the batch grows to at least one micro-batch per device."""
    grown = work.with_micro_batches(max(work.micro_batches, devices))
    ranks = gang(devices, machine.devices, grown.micro_batches)
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


def rows(work: Workload, machine: Machine, link: Link, asked: int) -> list[Row]:
    """Return a row for every power of two up to 4,096, and for ``asked`` devices."""
    powers = (1 << power for power in range(MOST.bit_length()))
    return [row(work, machine, link, devices) for devices in sorted({*powers, asked})]
