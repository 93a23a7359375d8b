"""An interpretation of network measurements: whether the network is slow, and its share of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankless.errors import counted
from rankless.launch.doctor.check import Check, ok, warning

_SLOW = 100e6  # bytes/s; a link of 1 Gbit/s carries 117e6


def bandwidth(timing: Mapping[str, Any], hosts: int) -> float:
    """Return the bytes per second that every host sends; an all-reduce sends its vector twice."""
    passes = 2 if timing["name"] == "all-reduce" else 1
    return float(passes * (hosts - 1) / hosts * timing["size"] / timing["seconds"])


def network(timings: Sequence[Mapping[str, Any]], hosts: int) -> Check:
    """Return the latency and bandwidth, with a warning if the network is slower than 1 Gbit/s."""
    latency = min(timing["seconds"] for timing in timings)
    largest = max((one for one in timings if one["name"] == "all-reduce"), key=lambda one: one["size"])
    rate = bandwidth(largest, hosts)
    value = f"{1000 * latency:.2f} ms, {rate / 1e6:,.0f} MB/s between {counted(hosts, 'host')} (gloo)"
    if rate < _SLOW:
        fix = "ethtool DEVICE shows the speed of a link; put the hosts on one switch, by cable"
        return warning("network", f"{value}: slower than 1 Gbit/s", fix)
    return ok("network", value)


def step(alone: float, exchange: float, shares: Sequence[int]) -> Check:
    """Estimate the seconds of a step and the network's share; upper bounds, because the two partly overlap.

    Args:
        alone: seconds of a step on the first host by itself.
        exchange: seconds to exchange the gradients between one rank of each host.
        shares: number of ranks on each host, the first host's first. Every rank sends.
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
