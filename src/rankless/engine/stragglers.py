"""Detection of ranks that compute more slowly than the others; the journal names them."""

from __future__ import annotations

import os
import statistics
from collections import deque
from collections.abc import Sequence

import torch

from rankless.hardware import memory
from rankless.world.process_group import World

SLOW = 1.2
"""A rank is slow above this many times the others' median."""
_STEPS = 20  # fewer say nothing
_LEAST = 0.005  # seconds of a micro-batch; differences below cost nobody anything


class Stragglers:
    """Compares the ranks' own time, where they meet anyway.

    Own time is that of a step without waiting for other ranks, by the micro-batch: some ranks have more of
    them. On GPUs the host does not see what the device waits for, so that there is no difference to be seen.
    """

    def __init__(self, world: World, micro_batches: int) -> None:
        self.world, self.micro_batches = world, micro_batches
        self._waits = world.transport.waits
        self._own: deque[float] = deque(maxlen=200)
        self._waited = self._waits.seconds
        self._named: set[int] = set()
        self._spread: list[float] = []
        self._memory: list[int] = []

    def begin(self) -> None:
        """Begin a step."""
        self._waited = self._waits.seconds

    def end(self, seconds: float) -> None:
        """A step of this rank has taken ``seconds``, all waits included."""
        self._own.append((seconds - (self._waits.seconds - self._waited)) / self.micro_batches)

    def take_spread(self) -> list[float]:
        """On rank 0, the milliseconds of each rank's micro-batch as last compared; once, and then nothing."""
        spread, self._spread = self._spread, []
        return spread

    def take_memory(self) -> list[int]:
        """On rank 0, the MiB of each rank as last gathered; once, and then nothing."""
        taken, self._memory = self._memory, []
        return taken

    def gather_memory(self) -> None:
        """Gather each device's peak memory on rank 0; every rank must call this."""
        device = self.world.device
        held = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else memory.peak()
        self._memory = self.world.gather(round(held / 2**20)) or []

    def compare(self) -> list[str]:
        """On rank 0, sentences about ranks that are slow now and were not before; every rank must call it."""
        if self.world.size == 1 or len(self._own) < _STEPS:  # the same number of steps on every rank
            return []
        gathered = self.world.gather([statistics.median(self._own), os.uname().nodename])
        self._own.clear()
        if gathered is None:
            return []
        self._spread = [round(1e3 * seconds, 2) for seconds, _ in gathered]
        slow = slow_ranks([seconds for seconds, _ in gathered])
        new, self._named = set(slow) - self._named, set(slow)
        return [
            f"rank {rank} on {host} is slow: a micro-batch takes it {seconds * 1e3:.0f} ms, the others "
            f"{slow[rank] * 1e3:.0f} ms, and they wait for it"
            for rank, (seconds, host) in enumerate(gathered)
            if rank in new
        ]


def slow_ranks(own: Sequence[float]) -> dict[int, float]:
    """Return ranks whose own time is far above the others', each with the others' median."""
    slow = {}
    for rank, seconds in enumerate(own):
        others = statistics.median([*own[:rank], *own[rank + 1 :]])
        if seconds > SLOW * others and seconds - others > _LEAST:
            slow[rank] = others
    return slow
