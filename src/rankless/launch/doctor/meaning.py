"""The meaning of a measured network: whether it is slow, and its share of a recipe's step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankless.errors import counted
from rankless.launch.doctor.check import Check, ok, warning

_SLOW = 100e6  # bytes/s; a link of 1 Gbit/s carries 117e6


def bandwidth(timing: Mapping[str, Any], hosts: int) -> float:
    """Bytes per second that every host sends: a part of its vector to each other, of an all-reduce twice."""
    passes = 2 if timing["name"] == "all-reduce" else 1
    return float(passes * (hosts - 1) / hosts * timing["size"] / timing["seconds"])


def network(timings: Sequence[Mapping[str, Any]], hosts: int) -> Check:
    """Latency and bandwidth, and a warning where the network is slower than any that is usual."""
    latency = min(timing["seconds"] for timing in timings)
    largest = max((one for one in timings if one["name"] == "all-reduce"), key=lambda one: one["size"])
    rate = bandwidth(largest, hosts)
    value = f"{1000 * latency:.2f} ms, {rate / 1e6:,.0f} MB/s between {counted(hosts, 'host')} (gloo)"
    if rate < _SLOW:
        fix = "ethtool DEVICE shows the speed of a link; put the hosts on one switch, by cable"
        return warning("network", f"{value}: slower than 1 Gbit/s", fix)
    return ok("network", value)


def step(alone: float, exchange: float, shares: Sequence[int]) -> Check:
    """Estimate a step and its share of network time; an upper bound, as they overlap in part.

    Args:
        alone: seconds of a step on the first host.
        exchange: seconds to exchange the gradients between one rank of each host.
        shares: how many ranks each host runs, the first host's first. Each of them sends.
    """
    computing = alone * shares[0] / sum(shares)
    sending = exchange * max(shares)
    total = computing + sending
    value = (
        f"about {1000 * total:,.0f} ms, of which {1000 * sending:,.0f} ms network, with {sum(shares)} ranks "
        f"on {counted(len(shares), 'host')}; {1000 * alone:,.0f} ms with {shares[0]} on the first alone"
    )
    if total >= alone:
        fix = "use a faster network, a larger batch.images, or the first host alone"
        return warning("step", f"{value}: more hosts make it slower", fix)
    return ok("step", value)
