"""Connections between machines: cuts are noticed, short ones heal, and strangers come too late."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankless.world import keepalive
from rankless.world.keepalive import listening, reject_new_connections, watch_connections
from support.process_server import SERVER

# Gloo does not report a broken connection to an operation whose message has partly arrived. A rank checks the
# connection while it is in `waiting`, as all operations of a training are.
RANK = """
import ctypes, os, sys
import torch
import torch.distributed as dist
from rankless.world.process_group import is_lost_peer, join

_, space, counter, what = sys.argv
with open(f"/run/netns/{space}") as file:
    assert not ctypes.CDLL(None).setns(file.fileno(), 0)
try:
    with join() as world:
        value = torch.ones(20_000_000 if what == "broadcast" else 100_000)
        for number in range(10**9):
            with world.transport.waits.waiting():
                if what == "broadcast":
                    dist.broadcast(value, 0)
                else:
                    dist.all_reduce(value)
            value /= 2
            with open(counter, "w") as file:
                file.write(str(number))
except Exception as error:
    print(error, file=sys.stderr, flush=True)
    os._exit(75 if is_lost_peer(error) else 1)
"""


@pytest.mark.parametrize("all_are_read", [True, False])
def test_connections_to_other_addresses_are_watched_and_no_others(all_are_read: bool) -> None:
    pair, other = socket.socketpair()
    with (
        pair,
        other,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), source_address=("127.0.0.2", 0)) as away,
        socket.create_connection(server.getsockname()) as here,
    ):
        accepted = [server.accept()[0], server.accept()[0]]
        watched = watch_connections(all_are_read=all_are_read)
        assert watched >= 2  # both ends of one; a test before this may have left some
        for end in (away, accepted[0]):
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, interval, count = (
                end.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert 5 < idle + interval * count <= 9
            unread = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert 5000 < unread < 9000 if all_are_read else unread == 0
        for end in (here, accepted[1], pair):
            assert not end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for end in accepted:
            end.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere listeners stay open")
@pytest.mark.parametrize("filters", [True, False])
def test_listeners_of_the_ranks_take_nobody_after_them(
    filters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newer kernels let only privileged users attach filters to TCP sockets."""
    if not filters:
        monkeypatch.setattr(keepalive, "_SO_ATTACH_FILTER", -1)
    with socket.create_server(("127.0.0.1", 0)) as users:
        known = listening()
        with (
            socket.create_server(("127.0.0.1", 0)) as ranks,
            socket.create_connection(ranks.getsockname()) as early,
            ranks.accept()[0] as accepted,
        ):
            reject_new_connections(known)
            with pytest.raises(TimeoutError):
                socket.create_connection(ranks.getsockname(), timeout=0.2)
            early.sendall(b"go on")
            assert accepted.recv(16) == b"go on"
            socket.create_connection(users.getsockname(), timeout=60).close()


class Network:
    def __init__(self, name: str) -> None:
        self.name = name

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def up(self) -> None:
        switch = f"{self.name}-switch"
        self.ip("netns", "add", switch)
        self.ip("-n", switch, "link", "add", "br0", "type", "bridge")
        self.ip("-n", switch, "link", "set", "br0", "up")
        for host in (1, 2):
            space, port = f"{self.name}-{host}", f"port{host}"
            self.ip("netns", "add", space)
            cable = ["type", "veth", "peer", "name", "eth0", "netns", space]
            self.ip("-n", switch, "link", "add", port, *cable)
            self.ip("-n", switch, "link", "set", port, "master", "br0", "up")
            self.ip("-n", space, "addr", "add", f"10.77.1.{host}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self.ip("-n", space, "link", "set", device, "up")

    def cable(self, state: str) -> None:
        """Cut the second host's cable (``down``), or reconnect it (``up``)."""
        self.ip("-n", f"{self.name}-switch", "link", "set", "port2", state)

    def down(self) -> None:
        for space in ("switch", "1", "2"):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.ip("netns", "del", f"{self.name}-{space}")


@pytest.fixture
def network() -> Iterator[Network]:
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    made = Network(f"rankless-{os.getpid()}")
    try:
        made.up()
    except subprocess.CalledProcessError as error:
        made.down()
        pytest.skip(f"no network namespaces can be made here: {error.stderr.decode().strip()}")
    yield made
    made.down()


def until(condition: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)


@pytest.mark.processes
@pytest.mark.slow
def test_a_short_cut_heals_and_a_long_one_is_a_lost_peer(network: Network, tmp_path: Path) -> None:
    """Two pairs of ranks, one with large messages that are cut halfway. Their timeout is half an hour."""
    (tmp_path / "rank.py").write_text(RANK)
    counters = [tmp_path / f"{what}-{rank}" for what in ("all_reduce", "broadcast") for rank in range(2)]

    def steps() -> int:
        return min(int(file.read_text() or -1) if file.exists() else -1 for file in counters)

    with contextlib.ExitStack() as stack:
        ranks, log = [], stack.enter_context((tmp_path / "log").open("wb"))
        for counter in counters:
            what, rank = counter.name.split("-")
            variables = {"RANK": rank, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2"}
            port = "29533" if what == "broadcast" else "29534"
            address = {"MASTER_ADDR": "10.77.1.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "eth0"}
            process = SERVER.start(
                [str(tmp_path / "rank.py"), f"{network.name}-{int(rank) + 1}", str(counter), what],
                environment={**os.environ, **variables, **address, "RANKLESS_CPU": "1"},
                cwd=tmp_path,
                output=log,
            )
            stack.callback(process.wait)
            stack.callback(process.send_signal, signal.SIGKILL)
            ranks.append(process)
        until(lambda: steps() > 3)
        network.cable("down")
        time.sleep(5)
        network.cable("up")
        before = steps()
        until(lambda: steps() > before + 3)
        network.cable("down")
        ends = [process.wait(60) for process in ranks]
        assert ends == [75] * 4, (tmp_path / "log").read_text()
