"""The time that a rank has waited for the others, and whether it is waiting now."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class PeerWaits:
    """Counts the time in which a rank could do nothing because another one was not there yet.

    What a GPU waits for is not seen: NCCL's waits are queued on the device, and the host goes on.

    Attributes:
        seconds: in all waits that have ended.
        depth: how many waits are under way; above zero the rank waits now.
    """

    def __init__(self) -> None:
        self.seconds, self.depth = 0.0, 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, the rank waits for other ranks."""
        self.depth += 1
        began = time.perf_counter()
        try:
            yield
        finally:
            self.depth -= 1
            self.seconds += time.perf_counter() - began
