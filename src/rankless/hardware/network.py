"""Query this machine's network interfaces and addresses, and its routes to other machines."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import socket
import struct
from contextlib import suppress
from pathlib import Path

from rankless.errors import UserError, listed

_SIOCGIFCONF, _SIOCGIFMTU = 0x8912, 0x8921  # <linux/sockios.h>
_IFREQ = 40  # bytes of struct ifreq on 64-bit Linux: 16 of the name, then the address
_IF_INET6 = Path("/proc/net/if_inet6")
_ELSEWHERE = ("203.0.113.1", "2001:db8::1")  # documentation addresses, which no host has (RFC 5737, 3849)


def interfaces() -> dict[str, list[str]]:
    """Return the addresses of each active interface, IPv4 first."""
    found: dict[str, list[str]] = {}
    for name, address in (*_addresses_v4(), *_addresses_v6()):
        found.setdefault(name, []).append(address)
    return found


def is_loopback(address: str) -> bool:
    """Check whether an address is a loopback address, such as 127.0.0.1, 127.0.1.1 or ::1."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def addresses_of(host: str) -> list[str]:
    """Return the addresses of a host, IPv4 first, or an empty list if it cannot be resolved."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


def address_towards(address: str) -> str | None:
    """Return this machine's source address for packets to ``address``, or None if there is no route.

    This only looks up the route in the kernel and sends nothing.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((address, 9))
        except OSError:
            return None
        return str(asking.getsockname()[0])


def public_address() -> str | None:
    """Return this machine's address on the default route, or its only address, or None."""
    for elsewhere in _ELSEWHERE:
        own = address_towards(elsewhere)
        if own and not is_loopback(own):
            return own
    others = own_addresses()
    return others[0] if len(others) == 1 else None


def own_address(host: str) -> str:
    """Return the address at which other machines reach this machine, given its name or address.

    Debian resolves a machine's own name to 127.0.1.1, which other machines cannot reach; such an address is
    replaced with :func:`public_address`. If ``host`` is ``localhost`` or a loopback address, it is kept.
    """
    found = addresses_of(host)
    known = {address for addresses in interfaces().values() for address in addresses}
    if is_loopback_host(host) and found:
        return found[0]
    for address in found:
        if address in known and not is_loopback(address):
            return address
    if any(map(is_loopback, found)):
        if own := public_address():
            return own
        known_to_others = listed(own_addresses()) or "none (no network)"
        raise UserError(
            f"{host}: resolves to {', '.join(found)} on its own machine, but other machines cannot reach "
            f"it; expected one of {known_to_others}; set MASTER_ADDR to an address that they can reach"
        )
    what = f"resolves to {', '.join(found)}, which is not an address of" if found else "cannot be resolved on"
    raise UserError(
        f"{host}: {what} the machine of rank 0; expected its name or address; set MASTER_ADDR to one of "
        f"{listed(own_addresses()) or 'its addresses'}"
    )


def is_loopback_host(host: str) -> bool:
    """Check whether ``host`` is ``localhost`` or a loopback address."""
    if host == "localhost":
        return True
    try:
        return is_loopback(host)
    except ValueError:
        return False


def interface_towards(host: str) -> str | None:
    """Return the name of the interface that leads to ``host``, or None if it is unknown."""
    if is_loopback_host(host):
        return interface_of("127.0.0.1")
    found = addresses_of(host)
    reached = next((address for address in found if not is_loopback(address)), None)
    own = address_towards(reached) if reached else public_address() if found else None
    return interface_of(own) if own else None


def interface_of(address: str) -> str | None:
    """Return the name of the interface with the given address, or None if there is none."""
    return next((name for name, addresses in interfaces().items() if address in addresses), None)


def mtu_of(interface: str) -> int | None:
    """Return the MTU of an interface in bytes, or None if it is unknown."""
    # Ask the kernel: /sys may belong to another network namespace.
    request = struct.pack("16si", interface.encode()[:15], 0).ljust(_IFREQ, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), _SIOCGIFMTU, request)
        except OSError:
            return None
    return int(struct.unpack_from("i", answer, 16)[0])


def listening_at(address: str, port: int) -> socket.socket:
    """Return a socket that listens on an address of this machine; port 0 chooses a free port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Allow reusing the port of a run that has just ended.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(4096)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"{address}:{port}: another program uses this port; stop it if it is left over from an "
                "earlier run, or set MASTER_PORT to another port"
            ) from error
        raise UserError(
            f"{address}:{port}: rank 0 cannot listen there ({error}); set MASTER_ADDR to another address"
        ) from error
    return listener


def listens(address: str, port: int) -> bool:
    """Check whether a process accepts connections at an address and port."""
    try:
        with socket.create_connection((address, port), timeout=5.0):
            return True
    except OSError:
        return False


def own_addresses() -> list[str]:
    """Return this machine's addresses, except loopback and link-local ones."""
    every = (address for addresses in interfaces().values() for address in addresses)
    return [one for one in every if not is_loopback(one) and not ipaddress.ip_address(one).is_link_local]


def _addresses_v4() -> list[tuple[str, str]]:
    import array

    size = 64 * _IFREQ
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        while True:  # the kernel stops when the buffer is full
            room = array.array("B", bytes(size))
            request = struct.pack("iL", size, room.buffer_info()[0])
            used = int(struct.unpack("iL", fcntl.ioctl(asking.fileno(), _SIOCGIFCONF, request))[0])
            if used < size:
                break
            size *= 4
    raw = room.tobytes()[:used]
    entries = (raw[at : at + _IFREQ] for at in range(0, used, _IFREQ))
    # An interface's additional addresses have labels, such as eth0:1.
    return [
        (e[:16].partition(b"\0")[0].decode().partition(":")[0], socket.inet_ntoa(e[20:24])) for e in entries
    ]


def _addresses_v6() -> list[tuple[str, str]]:
    found = []
    with suppress(OSError):  # no IPv6 here
        for line in _IF_INET6.read_text(encoding="ascii").splitlines():
            fields = line.split()
            found.append((fields[5], str(ipaddress.IPv6Address(bytes.fromhex(fields[0])))))
    return found
