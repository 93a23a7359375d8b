"""Interfaces and addresses, compared with what the kernel and iproute2 say."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rankless.errors import UserError
from rankless.hardware import network

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's interfaces")


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("ip") is None, reason="there is no iproute2")
def test_interfaces_are_those_of_ip() -> None:
    shown = json.loads(subprocess.run(["ip", "-json", "addr"], capture_output=True, check=True).stdout)
    expected = {
        one["ifname"]: {address["local"] for address in one["addr_info"]}
        for one in shown
        if one["addr_info"] and "UP" in one["flags"]
    }
    assert {name: set(addresses) for name, addresses in network.interfaces().items()} == expected


def test_the_loopback_interface_leads_to_this_machine() -> None:
    assert "127.0.0.1" in network.interfaces()["lo"]
    assert network.interface_towards("127.0.0.1") == network.interface_towards("localhost") == "lo"
    assert network.address_towards("127.0.0.1") == "127.0.0.1"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, list[str]], dict[str, str]]:
    """A machine with two networks, whose own name leads to 127.0.1.1; the default route goes by eth0."""
    names = {"me": ["127.0.1.1"], "me.fast": ["10.0.0.1"], "you": ["10.0.0.2"], "away": ["192.168.7.7"]}
    routes = {"10.0.0.2": "10.0.0.1", "10.0.0.1": "10.0.0.1", "203.0.113.1": "172.16.0.5"}
    interfaces = {"lo": ["127.0.0.1", "::1"], "eth0": ["172.16.0.5", "fe80::1"], "ib0": ["10.0.0.1"]}
    known = {**names, **{a: [a] for a in (*routes, "172.16.0.5", "127.0.0.1")}}
    monkeypatch.setattr(network, "interfaces", lambda: interfaces)
    monkeypatch.setattr(network, "addresses_of", lambda host: known.get(host, []))
    monkeypatch.setattr(network, "address_towards", routes.get)
    return interfaces, routes


@pytest.mark.usefixtures("machine")
def test_interfaces_and_own_addresses_by_host() -> None:
    leads = {"you": "ib0", "me.fast": "ib0", "me": "eth0", "127.0.0.1": "lo", "away": None, "nobody": None}
    assert {host: network.interface_towards(host) for host in leads} == leads
    assert network.own_address("me.fast") == "10.0.0.1"
    assert network.own_address("me") == "172.16.0.5", "never 127.0.1.1"
    assert network.own_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(UserError, match=r"you: resolves to 10.0.0.2, .*the machine of rank 0.*MASTER_ADDR"):
        network.own_address("you")
    with pytest.raises(UserError, match=r"nobody: cannot be resolved.*one of '172.16.0.5', '10.0.0.1'"):
        network.own_address("nobody")


def test_without_a_default_route_the_only_address_is_meant(
    machine: tuple[dict[str, list[str]], dict[str, str]],
) -> None:
    interfaces, routes = machine
    routes.clear()
    with pytest.raises(UserError, match=r"me: resolves to 127.0.1.1.*one of '172.16.0.5', '10.0.0.1'"):
        network.own_address("me")
    del interfaces["ib0"]
    assert network.own_address("me") == "172.16.0.5"


def test_a_socket_listens_at_one_address_alone() -> None:
    with network.listening_at("127.0.0.1", 0) as listener:
        address, port = listener.getsockname()
        assert address == "127.0.0.1"
        with socket.create_connection((address, port), timeout=5):
            pass
        with pytest.raises(
            UserError, match=rf"127.0.0.1:{port}: another program uses this port.*MASTER_PORT"
        ):
            network.listening_at("127.0.0.1", port)


def test_names_are_resolved_and_nothing_else_is_an_error() -> None:
    assert "127.0.0.1" in network.addresses_of("localhost")
    assert network.addresses_of("no such name") == network.addresses_of("\udcff") == []


def test_the_mtu_of_an_interface_is_the_kernels() -> None:
    for name in network.interfaces():
        assert network.mtu_of(name) == int(Path(f"/sys/class/net/{name}/mtu").read_text())
    assert network.mtu_of("nothing") is None
    assert network.mtu_of("") is None
