"""What a plan is asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """What a plan is asked for.

    Attributes:
        devices: machines, and devices of each; None is this machine.
        bandwidth, latency: of the network, in bytes per second and seconds; None is measured here.
        step: seconds of a step on one device; None is measured here.
        check: numbers of processes to measure as well.
    """

    devices: tuple[int, int] | None = None
    bandwidth: float | None = None
    latency: float | None = None
    step: float | None = None
    check: tuple[int, ...] = ()
