"""The clock of a rank's training loop: its current phase, the durations of phases, and the times of steps."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

from rankless.data.loader import MicroBatches
from rankless.world.transport import PeerWaits

WAITING, DRAWING, SAVING = "waiting for other ranks", "waiting for images", "saving"


@dataclass(frozen=True)
class StepTime:
    """Seconds that a step took, and of these the waits for ``images`` and for other ranks (``peers``)."""

    seconds: float
    images: float = 0.0
    peers: float = 0.0

    def entry(self) -> dict[str, Any]:
        """Return the entries of the step's line in the journal: seconds, and fractions of them."""
        waits = {"waited": self.images, "network": self.peers}
        return {
            "seconds": round(self.seconds, 4),
            "time": round(time.time(), 1),
            **{name: round(seconds / self.seconds, 3) for name, seconds in waits.items()},
        }


@dataclass(frozen=True)
class Phase:
    """A phase of ``step``, and the time of its start in seconds of ``time.monotonic``."""

    name: str
    step: int
    since: float


class Clock:
    """Measures the phases of a rank's loop. Other threads may read it.

    Attributes:
        now: the current phase.
        begun: number of phases begun so far.
        usual: the most recent durations of each phase, in seconds.
        slowest: the longest duration of each phase, in seconds.
    """

    def __init__(self, waits: PeerWaits, batches: MicroBatches[Any] | None = None) -> None:
        self._waits, self._batches = waits, batches
        self.usual: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=50))
        self.slowest: dict[str, float] = {}
        self.begun = 0
        self.now = Phase("starting", 0, time.monotonic())
        self._waited = self._waited_so_far()

    def begin(self, phase: str, step: int, slowest: float = 0.0) -> None:
        """Start a phase of ``step``. For a save, ``slowest`` is the duration of the slowest save so far."""
        before, now = self.now, time.monotonic()
        took = now - before.since
        self.usual[before.name].append(took)
        if before.name != SAVING:
            self.slowest[before.name] = max(took, self.slowest.get(before.name, 0.0))
        if slowest:
            self.slowest[phase] = slowest
        self._waited = self._waited_so_far()
        self.now = Phase(phase, step, now)
        self.begun += 1

    def since_begin(self) -> StepTime:
        """Return the time since the current phase began."""
        images, peers = self._waited_so_far()
        return StepTime(time.monotonic() - self.now.since, images - self._waited[0], peers - self._waited[1])

    def _waited_so_far(self) -> tuple[float, float]:
        return self._batches.waited if self._batches else 0.0, self._waits.seconds

    @property
    def at(self) -> str:
        """What the rank is doing: its current phase, or a wait within it."""
        if self._waits.depth:
            return WAITING
        return DRAWING if self._batches and self._batches.is_waiting else self.now.name
