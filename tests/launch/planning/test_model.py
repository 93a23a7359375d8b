"""The model: what must hold whatever the numbers, and what follows from the exchange itself."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_plans import work

from rankless.launch.planning.measuring import SIZES, contended, fitted
from rankless.launch.planning.model import (
    OVERHEAD,
    Bucket,
    Layout,
    Link,
    Machine,
    adding,
    all_to_all,
    buckets_exposed,
    gather,
    layout,
    memory_exposed,
    parts_exposed,
    ring_all_reduce,
    ring_exposed,
    row,
    rows,
    tree_exposed,
)
from rankless.launch.planning.plan import advice

links = st.builds(
    Link,
    st.floats(1e6, 1e12),
    st.floats(1e-7, 1e-2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 1e-10]),
)
machines = st.builds(
    Machine,
    st.integers(1, 16),
    st.one_of(st.none(), st.integers(1, 8)),
    st.floats(1.0, 4.0),
    st.one_of(st.none(), links),
)
works = st.builds(
    work,
    st.integers(1, 40),
    buckets=st.integers(1, 6),
    size=st.integers(1, 1 << 24),
    norms=st.sampled_from([(), (260, 1028)]),
    workers=st.integers(0, 4),
)


@given(works, machines, links, st.integers(1, 300), st.floats(1.0, 100.0))
def test_a_better_network_is_never_slower(step, machine, link, devices, better):
    now = row(step, machine, link, devices)
    faster = replace(link, bandwidth=link.bandwidth * better)
    sooner = replace(link, latency=link.latency / better)
    for improved in (faster, sooner):
        assert row(step, machine, improved, devices).step <= now.step * (1 + 1e-9)
        assert row(step, machine, improved, devices).ring <= now.ring * (1 + 1e-9)


@given(works, machines, links, st.integers(1, 300))
def test_efficiency_is_at_most_one(step, machine, link, devices):
    found = row(step, machine, link, devices)
    assert 0 < found.efficiency <= 1 + 1e-9
    assert 0 <= found.network_share < 1
    assert found.ring >= found.step - found.network - 1e-12
    assert found.images_per_second * found.step == pytest.approx(found.batch)


@given(works, machines, links)
def test_one_device_has_no_network(step, machine, link):
    found = row(step, machine, link, 1)
    assert found.network == 0
    assert found.ring == found.step == step.computing(step.micro_batches)
    assert found.efficiency == pytest.approx(1)


def test_the_tree_sends_what_a_ring_sends_where_every_rank_owns_a_node():
    ranks, link, size = layout(8, 1, 16), Link(1e9, 1e-9), 1 << 26
    tree = all_to_all(ranks, link, size) + adding(ranks, 1e-10, size) + gather(ranks, link, size)
    assert (ranks.most, ranks.nodes) == (1, 8)
    assert tree == pytest.approx(ring_all_reduce(ranks, link, 1e-10, size), rel=1e-5)
    assert tree == pytest.approx(2 * 7 / 8 * size / 1e9 + 7 / 8 * size * 1e-10, rel=1e-5)


def test_uneven_ranks_send_more():
    # Eight micro-batches on three ranks: 0-2, 3-5, 6-7 are 2, 2 and 1 whole nodes of the tree.
    ranks = layout(3, 1, 8)
    assert (ranks.most, ranks.least, ranks.nodes) == (2, 1, 5)
    assert all_to_all(ranks, Link(1e9, 0.0), 3000) == pytest.approx(4 * 1000 / 1e9)


def test_the_devices_of_a_machine_share_its_network():
    link = Link(1e9, 0.0)
    apart, shared = (all_to_all(Layout(8, here, 1, 1, 8), link, 8000) for here in (1, 4))
    assert apart == pytest.approx(7 * 1000 / 1e9)
    assert shared == pytest.approx(4 * 4 * 1000 / 1e9)  # each of four to each of four elsewhere


def test_a_backward_pass_hides_all_but_the_last_buckets():
    # Adding is computing; and a bucket is gathered when the next one is ready.
    step, one = work(totals=0, add=0.0), work(buckets=2, totals=0, add=0.0)
    ranks, link = layout(8, 1, 8), Link(1e12, 1e-7)
    for exposed in (tree_exposed, ring_exposed):
        assert exposed(step, ranks, link, 1.0) == pytest.approx(exposed(one, ranks, link, 1.0), rel=0.01)
    alone = tree_exposed(step, ranks, replace(link, overlaps=False), 1.0)
    assert alone > 2 * tree_exposed(step, ranks, link, 1.0)


# Two ranks, two buckets of 4 MiB that are ready after 4 and 8 ms of a backward pass of 8 ms. A MiB takes 1 ms
# on the link, so an all-to-all or a gather of a bucket takes 2 ms. Adding 1 MiB takes 1 ms: 2 ms a bucket.
TWO, MIB = Layout(2, 1, 1, 1, 2), 1 << 20
EXAMPLE = (Bucket(4 * MIB, 0.5), Bucket(4 * MIB, 1.0)), TWO, Link(MIB * 1e3, 0.0), 1e-3 / MIB, 8e-3


def test_the_order_over_nccl_agrees_with_a_case_by_hand():
    # All-to-all 1 from 4 to 6. The second bucket is ready at 8: add 1 until 10, gather 1 until 12. Then the
    # link has all-to-all 2 until 14; add 2 until 16, gather 2 until 18.
    assert buckets_exposed(*EXAMPLE) == pytest.approx((18 - 8) * 1e-3)
    # In a backward pass of 2 ms, the second bucket waits from 2 to 3 for all-to-all 1; then as above.
    assert buckets_exposed(*EXAMPLE[:-1], 2e-3) == pytest.approx((13 - 2) * 1e-3)


def test_the_order_over_gloo_agrees_with_a_case_by_hand():
    # Two parts of 2 MiB a bucket: each 1 ms on the link, and 1 ms to add. Bucket 1: all-to-alls from 4 to 6,
    # gathers until 8, while adding moves bucket 2 from 8 to 10. Its all-to-alls until 12, gathers until 14.
    assert parts_exposed(*EXAMPLE) == pytest.approx((14 - 8) * 1e-3)


def test_the_network_carries_other_parts_while_it_waits_for_a_first_byte():
    # Eight parts of 1 ms: all-to-alls until 8 ms. All but the last of the eight gathers fill the latency.
    late = Link(MIB * 1e3, 2e-3)
    for exposed, milliseconds in ((parts_exposed, 16 + 2), (buckets_exposed, 16 + 4)):
        found = exposed([Bucket(16 * MIB, 0.0)], TWO, late, 0.0, 0.0)
        assert found == pytest.approx(milliseconds * 1e-3, abs=OVERHEAD * 10)


def test_memory_is_copied_as_often_as_by_the_exchange_itself():
    # Four ranks, three micro-batches each: nodes of one and two leaves, eight in all. The shards of two nodes
    # for three others are copied, seven shards are added, and the total is copied.
    ranks, link = layout(4, 4, 12), Link(1e9, 0.0, copy=1e-3)
    assert (ranks.most, ranks.nodes) == (2, 8)
    copied = memory_exposed(ranks, link, 4) - memory_exposed(ranks, link, 0)
    assert copied == pytest.approx((2 * 3 + 7 + 4) * 1e-3)


def test_ranks_of_one_machine_use_its_memory_and_share_its_cores():
    step, network, inside = work(16, totals=0), Link(1e6, 1e-3), Link(1e9, 1e-6, copy=1e-10)
    machine = Machine(8, slots=2, inside=inside)
    found = [row(step, machine, network, devices).network for devices in (1, 2, 4, 8, 16)]
    assert found[0] == 0 and found == sorted(found)
    assert found[3] > 4 * found[1]  # four ranks on a core
    assert found[4] > 10 * found[3]  # two machines


@given(works, machines, links, st.integers(0, 8))
def test_more_ranks_never_exchange_less(step, machine, link, power):
    # One rank a machine, and a micro-batch each, so that nothing but the number of ranks changes.
    step, alone = replace(step, micro_batches=1), replace(machine, devices=1)
    few, many = (row(step, alone, link, devices).network for devices in (1 << power, 2 << power))
    assert few <= many * (1 + 1e-9)


def test_all_wait_for_the_slowest_device():
    found = [row(work(64), Machine(8), Link(25e9, 2e-5), devices) for devices in (1, 2, 64)]
    assert found[0].uneven == pytest.approx(found[0].step)
    # Of two, both are below the median of the larger with probability one half: each with sqrt(0.5).
    slower = (found[1].uneven - found[1].network) / (found[1].step - found[1].network)
    assert 0.5 * (1 + math.erf(math.log(slower) / 0.1 / math.sqrt(2))) == pytest.approx(math.sqrt(0.5))
    assert found[2].uneven > found[2].step * 1.1


def test_cores_are_shared():
    machine = Machine(4, slots=2, contention=1.2)
    assert [machine.slowdown(busy) for busy in (1, 2, 4)] == pytest.approx([1.0, 1.2, 2.4])
    assert [Machine(4).slowdown(busy) for busy in (1, 2, 4)] == [1.0, 1.0, 1.0]


def test_loading_is_in_the_step_or_beside_it():
    assert work(4, load=1.0).computing(4) - work(4, load=0.0).computing(4) == pytest.approx(4.0)
    assert work(4, load=0.001, workers=2).computing(4) == pytest.approx(work(4, load=0.0).computing(4))
    assert work(4, load=1.0, workers=2).computing(4) == pytest.approx(2.0 + 0.005)


def test_more_devices_than_micro_batches_need_a_larger_batch():
    found = {each.devices: each for each in rows(work(8), Machine(4), Link(25e9, 2e-5), 24)}
    assert list(found) == [1, 2, 4, 8, 16, 24, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    assert [found[count].batch for count in (1, 8, 16, 24)] == [32, 32, 64, 96]
    assert found[24].machines == 6


@pytest.mark.parametrize(
    ("devices", "words"),
    [(8, ()), (64, ("Goyal et al. 2017", "McCandlish")), (4096, ("LARS", "LAMB")), (32768, ("few results",))],
)
def test_the_literature_is_asked_where_micro_batches_run_out(devices, words):
    sentences = " ".join(advice(devices, 8, 4))
    assert bool(sentences) == bool(words)
    assert all(word in sentences for word in words)
    assert not words or f"batch.images={4 * devices} " in sentences


def test_a_link_is_found_again_from_the_times_of_its_exchanges():
    link, add, ranks = Link(2e9, 1e-4, overlaps=False, copy=2e-10), 1e-10, Layout(2, 2, 1, 1, 2)
    sockets = {
        f"{size}": all_to_all(ranks, link, size) + adding(ranks, add, size) + gather(ranks, link, size)
        for size in SIZES
    }
    memory = {f"{size}": memory_exposed(ranks, link, size) for size in SIZES}
    found = fitted([{"sockets": sockets, "memory": memory}], add)
    assert found.bandwidth == pytest.approx(link.bandwidth, rel=1e-3)
    assert found.latency == pytest.approx(link.latency, rel=0.02)
    assert found.copy == pytest.approx(link.copy, rel=1e-3)
    assert not found.overlaps
    assert fitted([{"sockets": sockets}], add).copy == 0


def test_contention_is_never_below_one():
    assert contended(work(), work(forward=0.04, backward=0.08, last=0.09)) > 1.9
    assert contended(work(), work(forward=0.01)) == 1.0
