"""End a rank that waits for a message whose connection broke halfway.

Gloo reports a broken connection to pending operations, but not to an operation whose message is halfway
through, which waits for the timeout of the process group. New operations on the connection fail at once, so a
rank that waits for long begins one.
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

_EVERY = 5.0  # seconds between checks; all connections report a cut within 9 (world/keepalive)
_TAG = 0x5EED  # no rank receives messages with this tag


@contextmanager
def ended_if_broken(transport: GroupTransport) -> Iterator[None]:
    """End the process with LOST_PEER if a wait within the block outlasts one of the connections of gloo."""
    end = threading.Event()
    watch = threading.Thread(target=_watch, args=(transport, end), name="connections", daemon=True)
    watch.start()
    try:
        yield
    finally:
        end.set()
        watch.join()


def _watch(transport: GroupTransport, end: threading.Event) -> None:
    """Check the connections in long waits; end the process if a wait goes on although one is broken."""
    before, broken = None, ""
    while not end.wait(_EVERY):
        wait = transport.waits.seconds if transport.waits.depth else None  # another number in another wait
        if wait is None or wait != before:
            before, broken = wait, ""
        elif broken:
            print(f"rank {dist.get_rank()}: lost a peer: {broken}", file=sys.stderr, flush=True)
            os._exit(LOST_PEER)
        else:
            broken = _broken(transport)


def _broken(transport: GroupTransport) -> str:
    """Return why a connection is broken; "" if all of them are open."""
    rank, groups = dist.get_rank(), (dist.group.WORLD, transport.beside)
    try:
        for group in filter(None, groups):
            for other in set(range(group.size())) - {rank}:
                group.send([torch.zeros(1, dtype=torch.uint8)], other, _TAG)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""
