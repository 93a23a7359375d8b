"""A test of connections between hosts with small and large packets: each listens and tries all others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rankless.hardware.network import addresses_of, interface_of, mtu_of, own_addresses
from rankless.launch.hosts.reach import Listener

WAIT = 3.0  # seconds for a connection, and for what is sent back
_LARGE = 1 << 18  # bytes: more than one packet of any network
_AT_ONCE = 256  # connections


class Echo(Listener):
    """A server that returns whatever it receives, for a limited time."""

    def __init__(self) -> None:
        super().__init__()
        self._room = threading.Semaphore(_AT_ONCE)
        for listener in self.sockets.values():
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def close(self) -> None:
        for listener in self.sockets.values():
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # ends what waits in another thread
        super().close()

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


def attempt(address: str, port: int) -> dict[str, Any]:
    """Connect to an :class:`Echo`, and send it more than one packet takes.

    Returns:
        ``failed``: why it cannot be reached; or the ``source`` address here, its ``interface`` and ``mtu``,
        and whether ``large`` packets come back.
    """
    try:
        connection = socket.create_connection((address, port), timeout=WAIT)
    except OSError as error:
        return {"failed": error.strerror or str(error)}
    with connection:
        source = connection.getsockname()[0]
        interface = interface_of(source) or ""
        large = False
        with suppress(OSError):
            connection.sendall(bytes(_LARGE))
            large = len(_received(connection)) == _LARGE
        return {"source": source, "interface": interface, "mtu": mtu_of(interface), "large": large}


def probe(targets: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Try to reach other hosts, all at the same time.

    Args:
        targets: by their names, ``ports`` of an :class:`Echo` by address, and ``host``, their own name.

    Returns:
        By name: ``tried``, the answers of :func:`attempt` by address; ``resolved``, the addresses that
        ``host`` has here.
    """
    # An address that this machine has, too, is a bridge of containers or the like on both.
    own = own_addresses()
    found: dict[str, dict[str, Any]] = {name: {"tried": {}, "resolved": []} for name in targets}

    def connect(name: str, address: str, port: int) -> None:
        found[name]["tried"][address] = attempt(address, port)

    def resolve(name: str, host: str) -> None:
        found[name]["resolved"] = addresses_of(host)

    threads = []
    for name, target in targets.items():
        threads.append(threading.Thread(target=resolve, args=(name, target["host"]), daemon=True))
        for address, port in target["ports"].items():
            if address not in own:
                threads.append(threading.Thread(target=connect, args=(name, address, port), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * WAIT)
    return {name: {**answer, "tried": dict(answer["tried"])} for name, answer in found.items()}


def _received(connection: socket.socket) -> bytes:
    """Receive bytes, up to the size of the test."""
    data = b""
    while len(data) < _LARGE:
        some = connection.recv(_LARGE - len(data))
        if not some:
            break
        data += some
    return data
