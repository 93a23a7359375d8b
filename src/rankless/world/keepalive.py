"""A cut cable ends in an error within seconds: the kernel's own heartbeats watch every connection.

Without them a rank waits for the time-out of the process group, half an hour, for what will never come. A cut
of some seconds heals without an error. Nothing is sent by the ranks themselves, and no clocks are compared.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

# Seconds until the first probe, seconds between probes, and how many may go unanswered.
_PROBES = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 6}
_UNACKNOWLEDGED = 8000  # milliseconds that sent data may stay unconfirmed


def watch_connections(*, all_are_read: bool) -> int:
    """Have the kernel watch this process's TCP connections to other machines, whoever opened them.

    Args:
        all_are_read: whether what is sent is always read at once, as gloo's messages are, of which none is
            sent before its receiver asks for it. Then data that the peer's machine does not confirm is an
            error, too. On a connection whose receiver may keep the sender waiting, as NCCL's, the kernel
            would take a full buffer for a lost machine.

    Returns:
        How many connections it watches now. None where the system does not list a process's files (macOS).
    """
    count = 0
    for connection in _connections():
        with closing(connection), suppress(OSError):  # closed meanwhile
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _PROBES.items():
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            if all_are_read:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED)
            count += 1
    return count


def _connections() -> Iterator[socket.socket]:
    """Copies of the file descriptors of this process's TCP connections to other machines."""
    try:
        numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    except OSError:
        return
    for number in numbers:
        with suppress(OSError):  # not connected, or closed meanwhile
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(number))
            if _is_to_another_machine(copy):
                yield copy
            else:
                copy.close()


def _is_to_another_machine(connection: socket.socket) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return False
    try:
        # On one machine both ends have the same address, whichever of its addresses that is.
        return bool(connection.getsockname()[0] != connection.getpeername()[0])
    except OSError:  # it listens
        return False
