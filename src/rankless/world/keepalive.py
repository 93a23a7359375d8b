"""Detection of broken connections between ranks, and protection of listening sockets.

The kernel's keepalive probes turn a cut cable into an error within seconds, but tolerate interruptions of a
few seconds. Without them, a rank would wait for the process group's timeout of half an hour.

Gloo never stops listening and accepts every connection, so a few thousand unwanted connections would crash
the process. If a connection breaks, gloo reports this to pending operations. An operation whose message is
partially received is not notified, and would wait until the process group times out. A new operation on the
connection fails at once, so a rank that waits for a long time starts one.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from ctypes import addressof, create_string_buffer
from pathlib import Path

import torch
import torch.distributed as dist

from rankless.errors import LOST_PEER
from rankless.world.transport import GroupTransport

# Seconds until the first probe, seconds between probes, and number of unanswered probes.
_PROBES = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 6}
# A packet filter with a single instruction that drops all packets. <linux/filter.h>, <asm-generic/socket.h>
_DROP, _SO_ATTACH_FILTER = create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0)), 26
# Accept only packets signed with a key, from any address (a prefix of 0 bits). <linux/tcp.h>
_TCP_MD5SIG_EXT, _PREFIX, _KEY_LENGTH = 32, 1, 16
_UNACKNOWLEDGED = 8000  # milliseconds that sent data may stay unacknowledged
_EVERY = 5.0  # seconds between checks; a connection reports a cut cable within 9 s
_TAG = 0x5EED  # no rank receives messages with this tag


def watch_connections(*, all_are_read: bool) -> int:
    """Enable TCP keepalive for all connections of this process to other machines, and return their number.

    If receivers read all data at once (``all_are_read``), as with gloo, unacknowledged data is an error as
    well. With NCCL, a receiver may block the sender, and the kernel would mistake a full buffer for a lost
    machine.
    """
    count = 0
    for connection in filter(_is_to_another_machine, _sockets()):
        with suppress(OSError):  # closed in the meantime
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _PROBES.items():
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            if all_are_read:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED)
            count += 1
    return count


def listening() -> set[int]:
    """Return the inode numbers of this process's listening sockets."""
    return {os.fstat(each.fileno()).st_ino for each in filter(_listens, _sockets())}


def reject_new_connections(known: Set[int]) -> None:
    """Make the kernel reject new connections to all listening sockets except the ``known`` ones."""
    for each in filter(_listens, _sockets()):
        if os.fstat(each.fileno()).st_ino in known:
            continue
        try:
            each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, addressof(_DROP)))
        except OSError:
            # Newer kernels require privileges for the filter, so require a signature with a random key.
            key = os.urandom(_KEY_LENGTH)
            signed = struct.pack("H126xBBHi80s", each.family, _PREFIX, 0, len(key), 0, key)
            with suppress(OSError):  # not supported by the kernel or the sandbox
                each.setsockopt(socket.IPPROTO_TCP, _TCP_MD5SIG_EXT, signed)


def _sockets() -> Iterator[socket.socket]:
    """Yield duplicates of this process's TCP sockets, closing each one before yielding the next."""
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # closed in the meantime
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    yield copy


def _listens(each: socket.socket) -> bool:
    return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _is_to_another_machine(connection: socket.socket) -> bool:
    try:
        # On the same machine, both ends have the same address.
        return bool(connection.getsockname()[0] != connection.getpeername()[0])
    except OSError:  # a listening socket has no peer
        return False


@contextmanager
def exit_if_broken(transport: GroupTransport) -> Iterator[None]:
    """Exit with ``LOST_PEER`` if a wait within the block continues after a gloo connection has broken."""
    end = threading.Event()
    watch = threading.Thread(target=_watch, args=(transport, end), name="connections", daemon=True)
    watch.start()
    try:
        yield
    finally:
        end.set()
        watch.join()


def _watch(transport: GroupTransport, end: threading.Event) -> None:
    before, broken = None, ""
    while not end.wait(_EVERY):
        wait = transport.waits.seconds if transport.waits.depth else None  # identifies the wait
        if wait is None or wait != before:
            before, broken = wait, ""
        elif broken:
            print(f"rank {dist.get_rank()}: lost a peer: {broken}", file=sys.stderr, flush=True)
            os._exit(LOST_PEER)
        else:
            broken = _broken(transport)


def _broken(transport: GroupTransport) -> str:
    rank, groups = dist.get_rank(), (dist.group.WORLD, transport.beside)
    try:
        for group in filter(None, groups):
            for other in set(range(group.size())) - {rank}:
                group.send([torch.zeros(1, dtype=torch.uint8)], other, _TAG)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""
