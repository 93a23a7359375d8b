"""The kernel watches every connection, and once all ranks are here lets nobody else in.

A cut cable ends in an error within seconds, by the kernel's own heartbeats. Without them a rank waits for the
time-out of the process group, half an hour, for what will never come. A cut of some seconds heals without an
error. Nothing is sent by the ranks themselves, and no clocks are compared.

Gloo listens as long as it lives and keeps whatever connects: some thousand connections end the process.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator, Set
from contextlib import suppress
from ctypes import addressof, create_string_buffer
from pathlib import Path

# Seconds until the first probe, seconds between probes, and how many may go unanswered.
_PROBES = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 6}
# A program for packets, of one instruction: of each keep nothing. <linux/filter.h>, <asm-generic/socket.h>
_DROP, _SO_ATTACH_FILTER = create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0)), 26
# From every address, by a prefix of no bits, only packets that are signed with this key. <linux/tcp.h>
_TCP_MD5SIG_EXT, _PREFIX, _KEY_LENGTH = 32, 1, 16
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
    for connection in filter(_is_to_another_machine, _sockets()):
        with suppress(OSError):  # it has ended meanwhile
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _PROBES.items():
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            if all_are_read:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED)
            count += 1
    return count


def listening() -> set[int]:
    """The sockets of this process that take connections, by their numbers on this machine."""
    return {os.fstat(each.fileno()).st_ino for each in filter(_listens, _sockets())}


def take_no_more(known: Set[int]) -> None:
    """Have the kernel drop what comes to sockets that listen, but for the ``known`` ones; connections stay.

    Where the system does not list a process's files (macOS), they go on taking them.
    """
    for each in filter(_listens, _sockets()):
        if os.fstat(each.fileno()).st_ino in known:
            continue
        try:
            each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, addressof(_DROP)))
        except (
            OSError
        ):  # newer kernels let only privileged users filter TCP; a signature nobody can make will do
            key = os.urandom(_KEY_LENGTH)
            signed = struct.pack("H126xBBHi80s", each.family, _PREFIX, 0, len(key), 0, key)
            with suppress(OSError):  # a kernel or a sandbox without it
                each.setsockopt(socket.IPPROTO_TCP, _TCP_MD5SIG_EXT, signed)


def _sockets() -> Iterator[socket.socket]:
    """Copies of the file descriptors of this process's TCP sockets, each until the next one is asked for."""
    try:
        numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    except OSError:
        return
    for number in numbers:
        with suppress(OSError):  # closed meanwhile
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    yield copy


def _listens(each: socket.socket) -> bool:
    return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _is_to_another_machine(connection: socket.socket) -> bool:
    try:
        # On one machine both ends have the same address, whichever of its addresses that is.
        return bool(connection.getsockname()[0] != connection.getpeername()[0])
    except OSError:  # it listens
        return False
