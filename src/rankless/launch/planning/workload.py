"""The parts of a recipe's step and the hardware: the numbers behind a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rankless.world.tree import owned_nodes


@dataclass(frozen=True)
class Bucket:
    """Gradients that are exchanged together.

    Attributes:
        size: bytes.
        ready: when they are computed, as a fraction (0–1) of the last backward pass.
    """

    size: int
    ready: float


@dataclass(frozen=True)
class Workload:
    """A step of a recipe on one device that has its machine to itself; times in seconds.

    Attributes:
        micro_batches: of a step of the recipe.
        micro: images of one.
        images: of an epoch.
        load: to load one micro-batch in one process.
        forward, backward: of one micro-batch.
        last: the backward pass of the last one, with the copies into buckets.
        update: everything after it: clip, optimizer, norms, average.
        add: to add two bytes' worth of gradients, per byte.
        buckets: in the order in which they become ready.
        totals: bytes of the counts and statistics that are exchanged beside the gradients.
        norms: bytes of each batch norm that is computed over the whole batch (``batch_norm: sync``).
        workers: loader processes per rank; 0 loads between the micro-batches.
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
        """Bytes of one set of gradients."""
        return sum(bucket.size for bucket in self.buckets)

    def with_micro_batches(self, count: int) -> Workload:
        """Return the workload with a global batch of ``count`` micro-batches."""
        return replace(self, micro_batches=count)

    def computing(self, micro_batches: int) -> float:
        """Return the seconds that a rank computes for this many micro-batches, undisturbed."""
        compute = micro_batches * self.forward + (micro_batches - 1) * self.backward + self.last
        load = micro_batches * self.load
        # Loader processes work beside the step, and hold it up only where they are slower.
        return self.update + (max(compute, load / self.workers) if self.workers else compute + load)


@dataclass(frozen=True)
class Machine:
    """The properties of each machine.

    Attributes:
        devices: of one machine.
        slots: devices that compute at the same time; those beyond share them. None: every device is real.
        contention: how many times as long computing takes when all slots are busy.
    """

    devices: int
    slots: int | None = None
    contention: float = 1.0

    def slowdown(self, busy: int) -> float:
        """Return the factor by which ``busy`` devices of a machine slow each other down."""
        if self.slots is None:
            return 1.0
        if busy > self.slots:
            return self.contention * busy / self.slots
        return 1.0 + (self.contention - 1.0) * (busy - 1) / max(self.slots - 1, 1)

    def sharing(self, busy: int) -> float:
        """Return the factor by which moving the bytes of ``busy`` devices slows the cores down."""
        return 1.0 if self.slots is None else max(busy / self.slots, 1.0)


@dataclass(frozen=True)
class Link:
    """The connection between two devices.

    Attributes:
        bandwidth: bytes per second, of a machine's link to the network and of each device's own.
        latency: seconds until the first byte of a message arrives (α).
        overlaps: whether bytes move while the devices compute. Over the loopback interface the cores move
            them, so they do not.
        overhead: seconds that a device needs to send one more message, whatever its size.
    """

    bandwidth: float
    latency: float
    overlaps: bool = True
    overhead: float = 2e-6

    def slowed(self, factor: float) -> Link:
        """Return the link with all times multiplied by ``factor``."""
        return Link(self.bandwidth / factor, self.latency * factor, self.overlaps, self.overhead * factor)


@dataclass(frozen=True)
class Gang:
    """The ranks of a run, in order on their machines, and their parts of the tree.

    Attributes:
        world: how many ranks.
        here: ranks of one machine.
        most, least: whole nodes of the rank with most and with fewest.
        nodes: of all ranks.
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
    """Return the ranks that share this many micro-batches, ``devices`` to a machine."""
    each, more = divmod(micro_batches, world)
    if not more and not each & (each - 1):
        counts: Sequence[int] = (1,) * world  # every rank owns one whole node
    else:
        counts = [len(owned_nodes(micro_batches, rank, world)) for rank in range(world)]
    return Gang(world, min(world, devices), max(counts), min(counts), sum(counts))
