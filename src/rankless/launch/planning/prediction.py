"""Predict the duration of a step on more devices, with a closed form for its exchange.

A device computes ``ceil(M / W)`` of the M micro-batches of a step and exchanges the gradients once. In the
fixed tree (:mod:`rankless.world.exchange`), an all-to-all distributes the shards of all node sums, each
device adds up one shard, and a ring gathers the totals. The last backward pass covers the exchange of all
buckets except the last one. The CPU ranks of a machine exchange gradients in its memory, which nothing
covers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rankless.world.reduce import BUCKET_MIB
from rankless.world.tree import owned_nodes

MOST = 4096
"""Number of devices in the last row of a plan."""
_BACKWARD = 2 / 3  # part of the time of a forward and a backward pass


@dataclass(frozen=True)
class Step:
    """The durations (in seconds) and sizes of a step on one device while all other devices are idle."""

    micro_batches: int
    micro: int  # number of images per micro-batch
    images: int  # number of images per epoch
    load: float  # time to load one micro-batch in one process
    compute: float  # time of the forward and backward pass of one micro-batch
    update: float  # time after the last backward pass (clipping, optimizer, norms, average)
    gradients: int  # bytes
    norms: int = 0  # number of batch norms over the whole batch (batch_norm: sync)
    workers: int = 0  # number of loader processes per rank; 0 loads between the micro-batches

    def computing(self, micro_batches: int) -> float:
        """Return the time in seconds that a rank takes to compute ``micro_batches`` on an idle machine."""
        compute, load = micro_batches * self.compute, micro_batches * self.load
        # Loader processes run in parallel with the step and delay it only if they are slower.
        return self.update + (max(compute, load / self.workers) if self.workers else compute + load)


@dataclass(frozen=True)
class Link:
    """The connection between two devices."""

    bandwidth: float  # bytes per second of each device, and of each machine's link to the network
    latency: float  # seconds from the call that sends a message until its first byte arrives
    overlaps: bool = True  # with computing; False for the loopback interface, where the cores move the bytes


@dataclass(frozen=True)
class Machine:
    """The properties of each machine."""

    devices: int  # number of devices per machine
    slots: int | None = None  # number of devices that can compute at the same time; None means all devices
    contention: float = 1.0  # factor by which computing slows down when all slots are busy
    copy: float = 0.0  # seconds to copy or add a byte in memory that the ranks share; 0 if they share none

    def slowdown(self, busy: int) -> float:
        """Return the factor by which computing slows down while ``busy`` devices of a machine compute."""
        if self.slots is None:
            return 1.0
        if busy > self.slots:
            return self.contention * busy / self.slots
        return 1.0 + (self.contention - 1.0) * (busy - 1) / max(self.slots - 1, 1)

    def sharing(self, busy: int) -> float:
        """Return the factor by which an exchange slows down while ``busy`` devices share the cores."""
        return 1.0 if self.slots is None else max(busy / self.slots, 1.0)


@dataclass(frozen=True)
class Row:
    """The prediction for one number of devices, with times in seconds."""

    devices: int
    machines: int
    batch: int  # images; more than in the recipe if that has too few micro-batches
    step: float
    network: float  # part of the step spent waiting for the network
    images_per_second: float  # speed of all devices together
    epoch: float
    efficiency: float  # speed per device relative to one device alone (0–1)
    loading: float  # images per second that the loader processes of a machine must deliver
    loaders: int | None  # number of loader processes needed per machine; None if loading was not measured

    @property
    def network_share(self) -> float:
        """The fraction (0–1) of the step spent waiting for the network."""
        return self.network / self.step


def transfer(devices: int, here: int, micro_batches: int, size: int, link: Link) -> float:
    """Return the time in seconds to exchange sums of ``size`` bytes, ``here`` devices on each machine.

    Every device sends a shard of each of its n nodes of the tree to all others, which is
    ``n (W - 1) / W`` of the size. The devices of a machine share its link to the devices elsewhere. The ring
    sends ``(W - 1) / W`` of the size in W - 1 messages.
    """
    others, shard = devices - 1, size / devices / link.bandwidth
    nodes = _most_nodes(devices, micro_batches)
    sent = max(others, here * (devices - here)) * nodes * shard
    return link.latency + sent + others * (link.latency + shard)


def exposed(step: Step, devices: int, machine: Machine, link: Link, backward: float) -> float:
    """Return the seconds that the exchange adds to a step whose last backward pass takes ``backward``."""
    if devices == 1:
        return 0.0
    here = min(devices, machine.devices)
    slower, size = machine.sharing(here), step.gradients
    if devices <= machine.devices and machine.copy and not step.norms:
        # A rank copies its sums to the other ranks' memory, adds up its shard of all sums, copies the total.
        nodes = _most_nodes(devices, step.micro_batches)
        copied = nodes * (devices - 1) / devices + (nodes * devices - 1) / devices + 1.0
        return slower * copied * size * machine.copy
    whole = slower * transfer(devices, here, step.micro_batches, size, link)
    if step.norms:  # all norms wait for each other, twice in the forward pass and once in the backward pass
        return whole + slower * 3 * step.norms * transfer(devices, here, step.micro_batches, 0, link)
    if not link.overlaps:
        return whole
    buckets = max(math.ceil(size / (BUCKET_MIB << 20)), 1)
    return max(whole - backward, whole / buckets)


def row(step: Step, machine: Machine, link: Link, devices: int) -> Row:
    """Predict a step on ``devices`` devices; the batch grows to at least one micro-batch per device."""
    grown = replace(step, micro_batches=max(step.micro_batches, devices))
    here = min(devices, machine.devices)
    slowdown = machine.slowdown(here)
    computing = grown.computing(-(-grown.micro_batches // devices)) * slowdown
    network = exposed(grown, devices, machine, link, _BACKWARD * step.compute * slowdown)
    batch, seconds = grown.micro_batches * grown.micro, computing + network
    alone = step.micro_batches * step.micro / step.computing(step.micro_batches)
    speed = batch / seconds
    loading = speed / devices * here
    return Row(
        devices=devices,
        machines=-(-devices // machine.devices),
        batch=batch,
        step=seconds,
        network=network,
        images_per_second=speed,
        epoch=step.images / speed,
        efficiency=speed / (devices * alone),
        loading=loading,
        loaders=math.ceil(loading * step.load / step.micro) if step.load else None,
    )


def rows(step: Step, machine: Machine, link: Link, requested: int) -> list[Row]:
    """Return a row for every power of two up to 4,096, and for ``requested`` devices."""
    powers = (1 << power for power in range(MOST.bit_length()))
    return [row(step, machine, link, devices) for devices in sorted({*powers, requested})]


def _most_nodes(devices: int, micro_batches: int) -> int:
    """Return the largest number of the tree's whole nodes that a device owns."""
    each, more = divmod(micro_batches, devices)
    if not more and not each & (each - 1):
        return 1
    counts: Sequence[int] = [len(owned_nodes(micro_batches, rank, devices)) for rank in range(devices)]
    return max(counts)
