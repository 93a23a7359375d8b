"""Find the addresses at which hosts reach each other by connecting to them.

Names are not reliable. A host's name may resolve to 127.0.1.1 on that host, and to an address in another
network or of a container bridge on other hosts.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rankless.errors import UserError
from rankless.hardware.network import addresses_of, interface_of, listening_at, mtu_of, own_addresses

WAIT = 3.0  # seconds for a connection, and for the echoed bytes
_LARGE = 1 << 18  # bytes: more than one packet on any network
_AT_ONCE = 256  # maximum number of connections answered at the same time
_LONGEST = 4 * WAIT  # seconds for a name server


class Listener:
    """A listener on every address that other machines may reach; if ``echo``, it echoes received bytes."""

    def __init__(self, *, echo: bool = False, addresses: Sequence[str] | None = None) -> None:
        self.echo, self._room = echo, threading.Semaphore(_AT_ONCE)
        self.sockets: dict[str, socket.socket] = {}
        for address in own_addresses() if addresses is None else addresses:
            with suppress(UserError):  # the address is being set up, or was just removed
                self.sockets[address] = listening_at(address, 0)
        for listener in self.sockets.values() if echo else ():
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def ports(self) -> dict[str, int]:
        return {address: listener.getsockname()[1] for address, listener in self.sockets.items()}

    def close(self) -> None:
        for listener in self.sockets.values():
            if self.echo:
                with suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)  # ends the wait in the other thread
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                if not self._room.acquire(blocking=False):
                    connection.close()
                    continue
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.settimeout(WAIT)
                connection.sendall(_received(connection))
        finally:
            self._room.release()


def attempt(address: str, port: int, *, large: bool, wait: float = WAIT) -> dict[str, Any]:
    """Connect to a :class:`Listener`; return this machine's address as ``source``, or an error as ``failed``.

    If ``large``, send more than one packet, and also return the ``interface``, its ``mtu``, and whether the
    bytes came back (``large``).
    """
    try:
        connection = socket.create_connection((address, port), timeout=wait)
    except OSError as error:
        return {"failed": error.strerror or str(error)}
    with connection:
        source = connection.getsockname()[0]
        if not large:
            return {"source": source}
        interface, came_back = interface_of(source) or "", False
        with suppress(OSError):
            connection.sendall(bytes(_LARGE))
            came_back = len(_received(connection)) == _LARGE
        return {"source": source, "interface": interface, "mtu": mtu_of(interface), "large": came_back}


def probe(
    targets: Mapping[str, Mapping[str, Any]], *, large: bool, own: Sequence[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Connect to other hosts at all their addresses at the same time.

    For each host, ``targets`` contains the ``ports`` of its :class:`Listener` by address, and a ``host`` name
    to resolve, which may be empty. For each host, the result contains the results of :func:`attempt` by
    address (``tried``), and the addresses to which the name resolves (``resolved``).
    """
    # An address that this machine also has, such as that of a container bridge, does not lead to the host.
    own = own_addresses() if own is None else own
    found: dict[str, dict[str, Any]] = {name: {"tried": {}, "resolved": []} for name in targets}

    def connect(name: str, address: str, port: int) -> None:
        found[name]["tried"][address] = attempt(address, port, large=large)

    def resolve(name: str, host: str) -> None:
        found[name]["resolved"] = addresses_of(host)

    threads = []
    for name, target in targets.items():
        if target["host"]:
            threads.append(threading.Thread(target=resolve, args=(name, target["host"]), daemon=True))
        for address, port in target["ports"].items():
            if address not in own:
                threads.append(threading.Thread(target=connect, args=(name, address, port), daemon=True))
    for thread in threads:
        thread.start()
    until = time.monotonic() + _LONGEST
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0.0))
    return {name: {**answer, "tried": dict(answer["tried"])} for name, answer in found.items()}


def _received(connection: socket.socket) -> bytes:
    data = b""
    while len(data) < _LARGE:
        some = connection.recv(_LARGE - len(data))
        if not some:
            break
        data += some
    return data


def sources(tried: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the local address for each remote address that :func:`attempt` reached."""
    return {
        address: found["source"] for address, found in tried.items() if found.get("large", "source" in found)
    }


def best_address(ports: Mapping[str, int], answers: Sequence[Mapping[str, str]]) -> str | None:
    """Return the address at which all other hosts reach a host, or None if there is none.

    ``answers`` contains the result of :func:`sources` from each other host. Addresses in a network that the
    hosts share are preferred, because their traffic is not routed.
    """
    common = [address for address in ports if all(address in answer for answer in answers)]

    def is_near(address: str) -> bool:
        prefix = 64 if ":" in address else 24
        network = ipaddress.ip_network(f"{address}/{prefix}", strict=False)
        return all(ipaddress.ip_address(answer[address]) in network for answer in answers)

    return next((address for address in common if is_near(address)), common[0] if common else None)
