"""What ``rankless doctor --hosts`` makes of what hosts answer, and how it measures between them."""

from __future__ import annotations

import io
import socket
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rankless.launch.doctor import hosts
from rankless.launch.hosts import host, messages, reach
from rankless.launch.hosts.channel import Access
from rankless.launch.hosts.host_pool import HostPool, Member
from rankless.launch.hosts.messages import Answer, Value
from rankless.launch.hosts.names import Host
from rankless.world import speed
from rankless.world.process_group import World

ACCESS = Access(["ssh"], "/opt/python", "python3", {}, "/")


@pytest.mark.parametrize(
    ("said", "name", "fix"),
    [
        ("me@b: Permission denied (publickey,password).", "SSH", "ssh-copy-id b"),
        ("Host key verification failed.", "SSH", "ssh b once"),
        ("RSA host key for b has changed and you have requested strict checking.", "SSH", "ssh-keygen -R b"),
        ("ssh: Could not resolve hostname b: Name or service not known", "SSH", "~/.ssh/config"),
        ("ssh: connect to host b port 22: Connection refused", "SSH", "systemctl start ssh"),
        ("ssh: connect to host b port 22: Connection timed out", "SSH", "ping b"),
        ("ssh: connect to host b port 22: No route to host", "SSH", "ping b"),
        ("/opt/python: No module named rankless", "rankless", "add --sync, or install rankless "),
        ("ModuleNotFoundError: No module named 'rankless'", "rankless", "add --sync, or install rankless "),
        ("ModuleNotFoundError: No module named 'torch'", "packages", "install the same packages there"),
        ("[Errno 2] No such file or directory: '/opt/python' there", "Python", "--python PATH"),
        ("bash: line 1: python3: command not found", "Python", "--python PATH"),
        ("no answer for 8 s", "answer", "ssh b /opt/python -m rankless --version"),
    ],
)
def test_why_a_host_cannot_be_used(said, name, fix):
    found = hosts.lost(Member(Host("b"), 0, lost=said), ACCESS)
    assert (found.name, found.level, found.value) == (name, "error", said)
    assert fix in found.fix


def member(name: str, **changes: Any) -> Member:
    """A host that has said what it is."""
    facts = {
        "environment": {
            "versions": {"python": "3.11.7", "rankless": "1", "torch": "2.14.1"}
            | changes.get("versions", {}),
            "hardware": {"device": "cpu"},
            "instruction_set": {"ATen": changes.get("isa", "AVX2"), "oneDNN": "AVX2"},
            "variables": {"OMP_NUM_THREADS": name} | changes.get("variables", {}),
        },
        "device": "cpu",
        "data": changes.get("data", "1234567890abcdef"),
        "problems": [],
    }
    return Member(Host(name), 0, facts=facts)


@pytest.mark.parametrize(
    ("changes", "level", "value", "fix"),
    [
        ({}, "ok", "on 2 hosts", ""),
        ({"versions": {"python": "3.12.1"}}, "ok", "on 2 hosts", ""),
        ({"versions": {"torch": "2.13.0"}}, "error", "torch: 2.14.1 on a; 2.13.0 on b", "torch==2.14.1"),
        ({"versions": {"rankless": "2"}}, "error", "rankless: 1 on a; 2 on b", "--sync"),
        ({"data": "fedcba"}, "error", "1234567890ab on a; fedcba on b", "copy the same data"),
        ({"isa": "AVX512"}, "warning", "the instruction set of ATen: AVX2 on a; AVX512 on b", "cpu_isa=avx2"),
        ({"variables": {"MKL_CBWR": "AVX2"}}, "warning", "MKL_CBWR: not set on a; AVX2 on b", "on all hosts"),
    ],
)
def test_hosts_that_are_not_alike(changes, level, value, fix):
    (found,) = hosts.consistency([member("a"), member("b", **changes)])
    assert found.level == level
    assert value in found.value
    assert fix in found.fix


def test_clocks_are_compared_with_what_the_round_trip_leaves_open():
    assert hosts.clocks({"a": (0.1, 0.05), "b": (-0.2, 0.05)}).value == "at most 0.400 s apart"
    apart = hosts.clocks({"a": (60.0, 0.05), "b": (0.0, 0.05), "c": (1.0, 0.1)})
    assert (apart.level, "a is 60.0 s ahead of b" in apart.value) == ("warning", True)
    assert hosts.clocks({"a": (6.0, 2.0), "b": (0.0, 2.0)}).level == "ok"  # it may be 2 s


def answers(there: dict[str, Any], back: dict[str, Any]) -> dict[str, Any]:
    """What two hosts say of each other: the first of ``b`` at 10.0.0.2, the second of ``a`` at 10.0.0.1."""
    usual = {"source": "10.0.0.9", "interface": "eth0", "mtu": 1500, "large": True}
    there, back = (one if "failed" in one else {**usual, **one} for one in (there, back))
    return {
        "a": {"b": {"tried": {"10.0.0.2": there}, "resolved": ["10.0.0.2"]}},
        "b": {"a": {"tried": {"10.0.0.1": back}, "resolved": ["127.0.1.1"]}},
    }


@pytest.mark.parametrize(
    ("there", "back", "level", "value"),
    [
        ({}, {}, "ok", "a → b at 10.0.0.2 by eth0 (MTU 1500); b → a at 10.0.0.1 by eth0 (MTU 1500)"),
        ({"failed": "timed out"}, {}, "error", "a → b: no connection (10.0.0.2: timed out)"),
        ({"large": False, "mtu": 9000}, {"mtu": 9000}, "error", "large packets are lost (eth0 has MTU 9000)"),
        ({"mtu": 9000}, {"mtu": 1500}, "warning", "9000 on a, 1500 on b"),
    ],
)
def test_connections_in_both_directions(there, back, level, value):
    (found,) = hosts.connections(answers(there, back))
    assert found.level == level
    assert value in found.value
    assert bool(found.fix) == (level != "ok")


def test_an_address_without_an_answer_is_harmless_next_to_one_that_answers():
    both = answers({}, {})
    both["a"]["b"]["tried"] = {"172.17.0.1": {"failed": "timed out"}, **both["a"]["b"]["tried"]}
    assert [check.level for check in hosts.connections(both)] == ["ok"]


def test_names_that_lead_elsewhere():
    (found,) = hosts.resolving(answers({}, {}), {"a": "node-a", "b": "node-b"})
    assert found.value == "node-a does not resolve to a on b"
    assert found.fix.endswith("add this line to /etc/hosts on b: 10.0.0.1 node-a")


@pytest.fixture
def ports():
    """The ports of a listener that echoes, by address."""
    listening = reach.Listener(echo=True, addresses=["127.0.0.1"])
    yield listening.ports()
    listening.close()


def test_large_packets_go_there_and_back(ports):
    found = reach.attempt("127.0.0.1", ports["127.0.0.1"], large=True)
    assert found == {"source": "127.0.0.1", "interface": "lo", "mtu": found["mtu"], "large": True}
    assert found["mtu"] > 1000


def test_a_host_that_swallows_packets_or_refuses():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert not reach.attempt("127.0.0.1", port, large=True, wait=0.2)["large"]
    assert reach.attempt("127.0.0.1", port, large=True) == {"failed": "Connection refused"}


def test_all_hosts_are_tried_and_named(ports):
    targets = {
        "b": {"ports": {**ports, "192.0.2.1": 9}, "host": "localhost"},
        "c": {"ports": {}, "host": "nobody.invalid"},
    }
    found = reach.probe(targets, large=True, own=["192.0.2.1"])
    assert list(found["b"]["tried"]) == ["127.0.0.1"]  # the other address is this machine's own
    assert "127.0.0.1" in found["b"]["resolved"]
    assert found["c"] == {"tried": {}, "resolved": []}


def measured(world: World) -> tuple[list[dict[str, Any]], float]:
    return speed.measure((1024, 65536)), speed.measure_exchange(3_000_000, 3)


@pytest.mark.processes
def test_every_rank_measures_the_same(ranks):
    (timings, exchange), *others = ranks(2, measured)
    assert all(other == (timings, exchange) for other in others)
    assert [(one["name"], one["size"]) for one in timings] == [
        (name, size) for name in ("all-reduce", "all-to-all") for size in (1024, 65536)
    ]
    assert min(exchange, *(one["seconds"] for one in timings)) > 0


TIMINGS = [
    {"name": "all-reduce", "size": 1024, "seconds": 0.001},
    {"name": "all-reduce", "size": 1 << 26, "seconds": 0.5},
    {"name": "all-to-all", "size": 1024, "seconds": 0.0005},
]


def test_latency_and_bandwidth():
    """Of an all-reduce between two hosts each sends its vector once, of an all-to-all half of it."""
    assert hosts.bandwidth(TIMINGS[1], 2) == (1 << 26) / 0.5
    assert hosts.bandwidth(TIMINGS[1], 4) == 1.5 * (1 << 26) / 0.5
    assert hosts.bandwidth(TIMINGS[2], 2) == 512 / 0.0005
    assert hosts.network(TIMINGS, 2).value == "0.50 ms, 134 MB/s between 2 hosts (gloo)"
    slow = hosts.network([{**timing, "seconds": timing["seconds"] * 2} for timing in TIMINGS], 2)
    assert (slow.level, "slower than 1 Gbit/s" in slow.value) == ("warning", True)
    assert [line.split() for line in hosts.speed(TIMINGS, 2)[1:]] == [
        ["size", "all-reduce", "all-to-all"],
        ["1", "KiB", "1.00", "ms", "1.0", "MB/s", "0.50", "ms", "1.0", "MB/s"],
        ["64", "MiB", "500.00", "ms", "134.2", "MB/s", "skipped"],
    ]


def test_what_a_network_means_for_a_step():
    found = hosts.step(0.344, 0.038, [1, 1])
    assert found.level == "ok"
    assert found.value.startswith("about 210 ms with 2 ranks on 2 hosts (network: 38 ms)")
    slower = hosts.step(0.1, 0.06, [1, 1])
    assert (slower.level, "using all hosts is slower" in slower.value) == ("warning", True)
    assert hosts.step(0.4, 0.01, [4, 4]).value.startswith(
        "about 240 ms with 8 ranks on 2 hosts (network: 40 ms)"
    )


def test_a_host_that_does_not_get_done_is_given_up():
    pool, answer = HostPool([Host("a"), Host("b")], ACCESS), Value(value={"10.0.0.2": 1})
    for member, does in zip(pool.members, (lambda _: None, lambda _: replies.append(answer)), strict=True):
        member.channel = SimpleNamespace(heard=float("inf"), command=does, drop=lambda: None)
        member.is_ready = member.has_connected = True
        member.answered = float("inf")
    replies = pool.members[1].replies
    assert pool.ask(pool.members, messages.Listen(), 0.1) == {1: answer}
    assert [member.lost for member in pool.members] == [
        "the command 'listen' did not finish within 0.1 s",
        "",
    ]


def test_a_host_with_an_older_version_says_so():
    answers = io.BytesIO()
    host.HostProcess(answers, ['{"do": "dance", "reply_to": 7}\n'])._read()
    reply = msgspec.json.decode(answers.getvalue(), type=Answer)
    assert reply.reply_to == 7
    assert reply.problems[0].endswith(
        "does not support the command 'dance'; install the same version on all hosts"
    )
