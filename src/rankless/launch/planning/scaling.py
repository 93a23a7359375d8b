"""The predicted step on 1 to 4,096 devices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rankless.launch.planning.exchange_model import ring_exposed, tree_exposed
from rankless.launch.planning.workload import Gang, Link, Machine, Workload, gang

MOST = 4096


@dataclass(frozen=True)
class Row:
    """One number of devices; times in seconds.

    Attributes:
        devices, machines: how many.
        batch: the global batch; larger than the recipe's where it has too few micro-batches.
        step: with the fixed tree.
        network: the part of it that is waiting for the network.
        ring: a step with ring all-reduces in place of the tree.
        images_per_second: of all devices.
        epoch: of the training images.
        efficiency: speed per device, beside that of one device alone; 0–1.
        loading: images per second that a machine's loaders must deliver.
        loaders: processes that takes on each machine; None where loading was not measured.
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
        """The part of a step that is the network; 0–1."""
        return self.network / self.step


def row(work: Workload, machine: Machine, link: Link, devices: int) -> Row:
    """Predict the step on this many devices; the global batch grows if micro-batches run out."""
    grown = work.with_micro_batches(max(work.micro_batches, devices))
    ranks = gang(devices, machine.devices, grown.micro_batches)
    slowdown = machine.slowdown(ranks.here)
    link = link.slowed(machine.sharing(ranks.here))
    micro_batches = -(-grown.micro_batches // devices)
    computing = grown.computing(micro_batches) * slowdown
    backward = grown.last * slowdown
    network = tree_exposed(grown, ranks, link, backward)
    ring = computing + ring_exposed(grown, ranks, link, backward)
    return _row(work, grown, ranks, computing, network, ring)


def _row(work: Workload, grown: Workload, ranks: Gang, computing: float, network: float, ring: float) -> Row:
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
    """A row for every power of two up to 4,096, and for the number asked for."""
    return [row(work, machine, link, devices) for devices in sorted({*_powers(), asked})]


def _powers() -> Iterator[int]:
    devices = 1
    while devices <= MOST:
        yield devices
        devices *= 2
