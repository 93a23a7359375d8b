"""Predictions: properties that hold for any inputs, and cases computed by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.launch.planning.measuring import SIZES, fitted
from rankless.launch.planning.plan import advice
from rankless.launch.planning.prediction import Link, Machine, exposed, row, rows, transfer
from support.small_plans import step

links = st.builds(Link, st.floats(1e6, 1e12), st.floats(1e-7, 1e-2), st.booleans())
machines = st.builds(
    Machine,
    st.integers(1, 16),
    st.one_of(st.none(), st.integers(1, 8)),
    st.floats(1.0, 4.0),
    st.sampled_from([0.0, 1e-10]),
)
steps = st.builds(
    step,
    st.integers(1, 40),
    gradients=st.integers(1, 1 << 26),
    norms=st.sampled_from([0, 2]),
    workers=st.integers(0, 4),
)


@given(steps, machines, links, st.integers(1, 300), st.floats(1.0, 100.0))
def test_a_better_network_is_never_slower(step, machine, link, devices, better):
    now = row(step, machine, link, devices)
    faster = replace(link, bandwidth=link.bandwidth * better)
    sooner = replace(link, latency=link.latency / better)
    for improved in (faster, sooner):
        assert row(step, machine, improved, devices).step <= now.step * (1 + 1e-9)


@given(steps, machines, links, st.integers(1, 300))
def test_efficiency_is_at_most_one(step, machine, link, devices):
    found = row(step, machine, link, devices)
    assert 0 < found.efficiency <= 1 + 1e-9
    assert 0 <= found.network_share < 1
    assert found.images_per_second * found.step == pytest.approx(found.batch)


@given(steps, machines, links)
def test_one_device_has_no_network(step, machine, link):
    found = row(step, machine, link, 1)
    assert found.network == 0
    assert found.step == step.computing(step.micro_batches)
    assert found.efficiency == pytest.approx(1)


def test_the_tree_sends_the_bytes_of_a_ring_if_each_rank_owns_a_node():
    size = 1 << 26
    assert transfer(8, 1, 16, size, Link(1e9, 0.0)) == pytest.approx(2 * 7 / 8 * size / 1e9)
    # Eight micro-batches on three ranks: 0-2 and 3-5 are two whole nodes of the tree each.
    assert transfer(3, 1, 8, 3000, Link(1e9, 0.0)) == pytest.approx((2 * 2 + 2) * 1000 / 1e9)
    # A message has a latency, and a ring of eight ranks passes on seven.
    assert transfer(8, 1, 16, 0, Link(1e9, 1e-5)) == pytest.approx(8e-5)


def test_devices_share_the_network_of_their_machine():
    # Each of the four devices of a machine sends a shard to each of the four devices elsewhere.
    assert transfer(8, 4, 8, 8000, Link(1e9, 0.0)) == pytest.approx((4 * 4 + 7) * 1000 / 1e9)


def test_a_backward_pass_covers_all_buckets_except_the_last_one():
    one, link = step(gradients=32 << 20), Link(1e9, 0.0)  # eight buckets
    whole = transfer(2, 1, 8, 32 << 20, link)
    assert exposed(one, 2, Machine(1), link, 1.0) == pytest.approx(whole / 8)
    assert exposed(one, 2, Machine(1), link, 0.25 * whole) == pytest.approx(0.75 * whole)
    assert exposed(one, 2, Machine(1), replace(link, overlaps=False), 1.0) == pytest.approx(whole)
    assert exposed(replace(one, norms=1), 2, Machine(1), link, 1.0) == pytest.approx(whole)


def test_memory_is_copied_as_often_as_in_the_exchange():
    # Four ranks with a node each: a rank copies 3/4 of its sum to the others, adds 3/4 of a sum, and copies
    # the total.
    machine, link = Machine(4, copy=1e-3), Link(1.0, 1.0)
    assert exposed(step(gradients=4), 4, machine, link, 0.0) == pytest.approx((3 + 3 + 4) * 1e-3)


def test_cores_are_shared():
    machine = Machine(4, slots=2, contention=1.2, copy=1e-9)
    assert [machine.slowdown(busy) for busy in (1, 2, 4)] == pytest.approx([1.0, 1.2, 2.4])
    assert [Machine(4).slowdown(busy) for busy in (1, 2, 4)] == [1.0, 1.0, 1.0]
    two, four = (exposed(step(gradients=4), count, machine, Link(1.0, 1.0), 0.0) for count in (2, 4))
    assert four / two == pytest.approx(2 * 10 / 8)


def test_loading_is_in_the_step_or_beside_it():
    assert step(4, load=1.0).computing(4) - step(4, load=0.0).computing(4) == pytest.approx(4.0)
    assert step(4, load=0.001, workers=2).computing(4) == pytest.approx(step(4, load=0.0).computing(4))
    assert step(4, load=1.0, workers=2).computing(4) == pytest.approx(2.0 + 0.005)


def test_more_devices_than_micro_batches_need_a_larger_batch():
    found = {each.devices: each for each in rows(step(8), Machine(4), Link(25e9, 2e-5), 24)}
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
    link, machine = Link(2e9, 1e-4), Machine(2, copy=2e-10)
    sockets = {f"{size}": transfer(2, 1, 2, size, link) for size in SIZES}
    memory = {f"{size}": exposed(step(gradients=size), 2, machine, link, 0.0) for size in SIZES}
    bandwidth, latency, copy = fitted([{"sockets": sockets, "memory": memory}])
    assert bandwidth == pytest.approx(link.bandwidth, rel=1e-3)
    assert latency == pytest.approx(link.latency, rel=0.02)
    assert copy == pytest.approx(machine.copy, rel=1e-3)
    assert fitted([{"sockets": sockets}])[2] == 0
