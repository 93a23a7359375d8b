"""Detect ranks that compute more slowly than other ranks."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from rankless.engine.clock import StepTime
from rankless.hardware import memory
from rankless.world.process_group import World

SLOW = 1.2
"""A rank is slow if its time exceeds the median of the others by this factor."""
_STEPS = 20  # minimum steps for a reliable median
_LEAST = 0.005  # seconds per micro-batch; smaller differences do not matter


class Stragglers:
    """Compares how long the ranks take for a micro-batch, not counting the time spent waiting for others.

    On GPUs, no difference is visible, because the host does not see what the device waits for.
    """

    def __init__(self, world: World, micro_batches: int) -> None:
        self.world, self.micro_batches = world, micro_batches
        self._own: deque[float] = deque(maxlen=200)
        self._named: set[int] = set()
        self._found: dict[str, list[Any]] = {}
        self._forget_use()

    def add(self, time: StepTime, *, more: int = 0) -> None:
        """Add a step. ``more`` is the number of micro-batches that this rank computed besides its own."""
        self._own.append((time.seconds - time.peers) / (self.micro_batches + more))
        self._waiting += time.peers + time.images

    def take(self) -> dict[str, list[Any]]:
        """On rank 0, return and clear the newest measurements of all ranks.

        The keys are ``ranks`` (milliseconds per micro-batch), ``memory`` (MiB) and ``busy`` (a fraction).
        """
        found, self._found = self._found, {}
        return found

    def gather_use(self) -> None:
        """Gather the peak memory and the busy fraction of each rank on rank 0. All ranks must call this.

        A GPU counts as busy while its host waits neither for images nor for other ranks. On a CPU, the busy
        fraction is the process's CPU time divided by the elapsed time and the number of threads.
        """
        device = self.world.device
        if device.type == "cuda":
            held = torch.cuda.max_memory_allocated(device)
            busy = 1 - self._waiting / (time.perf_counter() - self._since)
        else:
            held = memory.peak()
            sharing = self.world.size if self.world.transport.in_process else 1
            threads = torch.get_num_threads() * sharing
            busy = (time.process_time() - self._computed) / (time.perf_counter() - self._since) / threads
        gathered = self.world.gather([round(held / 2**20), round(min(max(busy, 0.0), 1.0), 3)])
        if gathered:
            self._found |= {"memory": [one[0] for one in gathered], "busy": [one[1] for one in gathered]}
        self._forget_use()

    def _forget_use(self) -> None:
        self._waiting, self._since, self._computed = 0.0, time.perf_counter(), time.process_time()

    def compare(self) -> list[str]:
        """Return, on rank 0, messages about ranks that have become slow. All ranks must call this."""
        if self.world.size == 1 or len(self._own) < _STEPS:  # the same number of steps on every rank
            return []
        gathered = self.world.gather([statistics.median(self._own), os.uname().nodename])
        self._own.clear()
        if gathered is None:
            return []
        self._found["ranks"] = [round(1e3 * seconds, 2) for seconds, _ in gathered]
        slow = slow_ranks([seconds for seconds, _ in gathered])
        new, self._named = set(slow) - self._named, set(slow)
        return [
            f"rank {rank} on {host} is slow: it takes {seconds * 1e3:.0f} ms for a micro-batch, but the "
            f"others take {slow[rank] * 1e3:.0f} ms and wait for it"
            for rank, (seconds, host) in enumerate(gathered)
            if rank in new
        ]


def slow_ranks(own: Sequence[float]) -> dict[int, float]:
    """Return the ranks that are much slower than the others, each with the others' median time."""
    slow = {}
    for rank, seconds in enumerate(own):
        others = statistics.median([*own[:rank], *own[rank + 1 :]])
        if seconds > SLOW * others and seconds - others > _LEAST:
            slow[rank] = others
    return slow
