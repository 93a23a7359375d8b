"""Which sockets a tree of processes has open to others, as the kernel tells it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_LISTEN = "0A"  # <net/tcp_states.h>


class Socket(NamedTuple):
    kind: str  # tcp, tcp6, udp, udp6, raw, raw6
    address: str
    port: int

    @property
    def is_open(self) -> bool:
        return not ipaddress.ip_address(self.address).is_loopback


def listening(pids: Iterable[int]) -> set[Socket]:
    """TCP sockets that listen, and every UDP and raw socket, of these processes."""
    own = {inode for pid in pids for inode in _inodes(pid)}
    found = set()
    for kind in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in own and (not kind.startswith("tcp") or fields[3] == _LISTEN):
                address, port = fields[1].split(":")
                found.add(Socket(kind, _readable(address), int(port, 16)))
    return found


def _inodes(pid: int) -> Iterable[str]:
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has ended
        return
    for link in links:
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target.removeprefix("socket:[").removesuffix("]")


def _readable(words: str) -> str:
    """The kernel prints an address as 32-bit words in the order of the host's bytes (little-endian here)."""
    raw = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
