"""The time of a step's exchange: a closed form in latency α, bandwidth 1/β and the time of adding.

The fixed tree (:mod:`rankless.world.exchange`): the node sums go to everyone shard by shard (all-to-all),
each rank adds one shard of all, the shards are gathered around a ring. For comparison a ring all-reduce,
whose cost is that of Thakur, Rabenseifner and Gropp (2005). The messages of an all-to-all do not wait for
each other (LogGP, Alexandrov et al. 1995): their latency passes once. Those of a ring do.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankless.launch.planning.workload import Bucket, Gang, Link, Workload


def all_to_all(gang: Gang, link: Link, size: int) -> float:
    """Seconds until every rank has its shard of all node sums, each of ``size`` bytes."""
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
    """Seconds until every rank has all shards of a sum of ``size`` bytes, sent around a ring."""
    shard = size / gang.world / link.bandwidth
    return (gang.world - 1) * (link.latency + link.overhead + shard)


def adding(gang: Gang, add: float, size: int) -> float:
    """Seconds in which a rank adds its shard of all node sums; ``add`` is per byte."""
    return (gang.nodes - 1) * size / gang.world * add if gang.world > 1 else 0.0


def ring_all_reduce(gang: Gang, link: Link, add: float, size: int) -> float:
    """Seconds of a ring all-reduce of ``size`` bytes."""
    per_round = link.latency + link.overhead + size / gang.world / link.bandwidth
    return (gang.world - 1) * (2 * per_round + size / gang.world * add)


def tree_exposed(work: Workload, gang: Gang, link: Link, backward: float) -> float:
    """Seconds that the fixed tree's exchange adds to a step."""
    if gang.world == 1:
        return 0.0
    if work.norms:  # nothing overlaps, and every norm meets twice on the way in and once on the way back
        meetings = sum(3 * _whole(gang, link, work.add, size) for size in work.norms)
        return meetings + sum(_whole(gang, link, work.add, size) for size in (work.totals, work.gradients))
    totals = adding(gang, work.add, work.totals) + gather(gang, link, work.totals)
    if not link.overlaps:
        totals += all_to_all(gang, link, work.totals)
        return totals + sum(_whole(gang, link, work.add, bucket.size) for bucket in work.buckets)
    return totals + buckets_exposed(work.buckets, gang, link, work.add, backward, totals=work.totals)


def buckets_exposed(
    buckets: Sequence[Bucket], gang: Gang, link: Link, add: float, backward: float, *, totals: int = 0
) -> float:
    """Seconds from the end of the backward pass until the last bucket is there.

    As in :meth:`rankless.world.reduce.GradientSum.exchange` over NCCL: when a bucket is ready, the one before
    is waited for, added and gathered, and the backward pass goes on. Over gloo it does not wait, so that a
    step takes a little less.
    """
    free = all_to_all(gang, link, totals) if totals else 0.0  # when the network is
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
    """Seconds that ring all-reduces of the same buckets would add to a step; as for :func:`tree_exposed`."""
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
