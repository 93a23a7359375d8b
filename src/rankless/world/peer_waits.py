"""The time that a rank spends waiting for other ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class PeerWaits:
    """A counter of the time that a rank waits for other ranks.

    Waits of NCCL are not included, because they block the GPU instead of the host.

    Attributes:
        seconds: total duration of all finished waits.
        depth: number of nested waits in progress, or 0 if the rank is not waiting.
    """

    def __init__(self) -> None:
        self.seconds, self.depth = 0.0, 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the duration of the block as a wait for other ranks."""
        self.depth += 1
        began = time.perf_counter()
        try:
            yield
        finally:
            self.depth -= 1
            self.seconds += time.perf_counter() - began
