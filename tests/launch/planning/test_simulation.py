"""The closed form beside the exchange message by message."""

import pytest
from small_plans import work

from rankless.launch.planning.model import Bucket, Gang, Link, Machine, buckets_exposed
from rankless.launch.planning.simulation import Simulation, simulated, stragglers

ADD = 1e-10


def seconds(
    ranks: Gang, link: Link, buckets: tuple[Bucket, ...], backward: float, sigma: float = 0.0
) -> float:
    slow = stragglers(ranks.world, sigma, seed=7)
    return Simulation(ranks, link, buckets, ADD, backward, slow).run()


def model(ranks: Gang, link: Link, buckets: tuple[Bucket, ...], backward: float) -> float:
    return backward + buckets_exposed(buckets, ranks, link, ADD, backward)


@pytest.mark.parametrize("backward", [0.0, 0.05])
@pytest.mark.parametrize(
    ("here", "bandwidth", "latency"), [(1, 1e9, 20e-6), (8, 25e9, 20e-6), (8, 1e9, 20e-6), (4, 25e9, 1e-6)]
)
def test_the_model_of_64_ranks_is_within_2_percent(here, bandwidth, latency, backward):
    ranks, link, buckets = Gang(64, here, 1, 1, 64), Link(bandwidth, latency), work(buckets=3).buckets
    assert model(ranks, link, buckets, backward) == pytest.approx(
        seconds(ranks, link, buckets, backward), rel=0.02
    )


@pytest.mark.slow
def test_the_model_of_512_ranks_is_within_1_percent():
    ranks, link, buckets = Gang(512, 8, 1, 1, 512), Link(25e9, 20e-6), work(buckets=1).buckets
    assert model(ranks, link, buckets, 0.0) == pytest.approx(seconds(ranks, link, buckets, 0.0), rel=0.01)


@pytest.mark.parametrize("world", [2, 3, 7])
def test_small_worlds_agree_too(world):
    ranks, link, buckets = (
        Gang(world, 3 if world > 3 else world, 1, 1, world),
        Link(1e9, 2e-5),
        work().buckets,
    )
    assert model(ranks, link, buckets, 0.05) == pytest.approx(seconds(ranks, link, buckets, 0.05), rel=0.03)


def test_everybody_waits_for_stragglers():
    ranks, link, buckets = Gang(16, 4, 1, 1, 16), Link(25e9, 20e-6), work().buckets
    even = seconds(ranks, link, buckets, 0.05)
    some, more = (seconds(ranks, link, buckets, 0.05, sigma) for sigma in (0.05, 0.2))
    slowest = max(stragglers(16, 0.2, seed=7))
    assert even < some < more
    assert more >= 0.05 * slowest
    assert more - 0.05 * slowest == pytest.approx(even - 0.05, abs=0.002)  # its exchange comes on top
    assert seconds(ranks, link, buckets, 0.05, 0.2) == more  # the seed decides


def test_one_rank_exchanges_nothing():
    assert seconds(Gang(1, 1, 1, 1, 1), Link(1e9, 1e-5), work().buckets, 0.3) == 0.3


def test_a_plan_simulates_at_most_64_devices():
    step = work(buckets=1)
    found = simulated(step, Machine(8), Link(25e9, 2e-5), 4096)
    assert found is not None
    assert found.ranks == 64
    assert found.model == pytest.approx(found.simulated, rel=0.03)
    assert found.stragglers > found.simulated
    assert simulated(step, Machine(8), Link(25e9, 2e-5, overlaps=False), 4) is None
    assert simulated(step, Machine(8), Link(25e9, 2e-5), 1) is None
