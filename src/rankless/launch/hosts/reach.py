"""Which address of a host the others can reach: found by asking and trying, never by looking a name up.

A host's name may mean 127.0.1.1 there, another network here, or a bridge of containers.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from rankless.errors import UserError
from rankless.hardware.network import listening_at, own_addresses

WAIT = 3.0  # seconds for a connection
_AT_ONCE = 64


class Listener:
    """Listens at every address of this machine that others may reach, to be tried by them."""

    def __init__(self) -> None:
        self.sockets: dict[str, socket.socket] = {}
        for address in own_addresses():
            with suppress(UserError):  # it is being set up, or has just gone
                self.sockets[address] = listening_at(address, 0)

    def ports(self) -> dict[str, int]:
        """The port at each address."""
        return {address: listener.getsockname()[1] for address, listener in self.sockets.items()}

    def close(self) -> None:
        """Stop listening."""
        for listener in self.sockets.values():
            listener.close()


def reachable(ports: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, str]]:
    """Try to connect to each address of other machines, all at once.

    Args:
        ports: by machine, those of a :class:`Listener` there. An address that this machine has, too, is a
            bridge of containers or the like on both: whoever answers there is not the other machine.

    Returns:
        By machine and each of its addresses that answered, this machine's own address that was used.
    """
    own = own_addresses()
    wanted = [(name, *at) for name, of in ports.items() for at in of.items() if at[0] not in own]
    sources: dict[str, dict[str, str]] = {name: {} for name in ports}

    def reach(name: str, address: str, port: int) -> None:
        with suppress(OSError), socket.create_connection((address, port), timeout=WAIT) as connection:
            sources[name][address] = connection.getsockname()[0]

    with ThreadPoolExecutor(min(len(wanted), _AT_ONCE) or 1) as pool:
        for name, address, port in wanted:
            pool.submit(reach, name, address, port)
    return sources


def best_address(ports: Mapping[str, int], answers: Sequence[Mapping[str, str]]) -> str | None:
    """The address of a machine at which all others reach it; None without one.

    Args:
        ports: of its :class:`Listener`.
        answers: of :func:`reachable` on each of the others.

    Returns:
        One of the network that the others are in themselves, if there is one: traffic that is not routed.
    """
    common = [address for address in ports if all(address in answer for answer in answers)]

    def is_near(address: str) -> bool:
        prefix = 64 if ":" in address else 24
        network = ipaddress.ip_network(f"{address}/{prefix}", strict=False)
        return all(ipaddress.ip_address(answer[address]) in network for answer in answers)

    return next((address for address in common if is_near(address)), common[0] if common else None)
