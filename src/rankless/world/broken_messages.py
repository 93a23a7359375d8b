"""Exit if a rank waits for a message on a connection that broke halfway through it.

Gloo reports a broken connection to pending operations, except to one whose message is partially received,
which waits until the process group times out. Because new operations on the connection fail at once, a rank
that waits for a long time starts one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from rankless.errors import LOST_PEER
from rankless.world.transport import GroupTransport

_EVERY = 5.0  # seconds between checks; a connection reports a cut cable within 9 s (world/keepalive)
_TAG = 0x5EED  # no rank receives messages with this tag


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
    """Return why a connection is broken, or "" if all connections are open."""
    rank, groups = dist.get_rank(), (dist.group.WORLD, transport.beside)
    try:
        for group in filter(None, groups):
            for other in set(range(group.size())) - {rank}:
                group.send([torch.zeros(1, dtype=torch.uint8)], other, _TAG)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""
