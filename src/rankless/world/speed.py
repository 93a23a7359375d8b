"""Measure collective operations over gloo between machines, with one rank on each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rankless.errors import UserError
from rankless.world.compat import quiet_output
from rankless.world.exchange import Exchange
from rankless.world.reduce import BUCKET_MIB
from rankless.world.rendezvous import join_store, on_interface

SIZES = tuple(1024 * 4**power for power in range(9))
"""Vector sizes to measure in bytes, from 1 KiB to 64 MiB."""
_WAIT = timedelta(seconds=20)  # timeout of one collective operation
_BUDGET = 0.25  # seconds for repeating one size of one collective operation
_MOST = 2.0  # expected seconds of a collective operation above which a size is left out
_TIMES = 50
_LONG = 0.5  # seconds above which work is not repeated


@dataclass(frozen=True)
class Timing:
    """The median ``seconds`` of a collective operation on the slowest rank, for vectors of ``size`` bytes."""

    name: str
    size: int
    seconds: float


@contextmanager
def connected(rank: int, size: int, address: str, port: int, interface: str | None) -> Iterator[None]:
    """Connect this process as one of ``size`` ranks over gloo within this context.

    ``address`` and ``port`` are those of the store (:func:`rankless.world.rendezvous.open_store`).
    """
    try:
        store = join_store(address, port, _WAIT)
        with on_interface(interface), quiet_output():
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_WAIT)
        try:
            yield
        finally:
            dist.destroy_process_group()
    except RuntimeError as error:  # a peer or the network failed
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"the network cannot be measured ({line}); check the network, and try again"
        ) from error


def measure(sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """Measure all-reduce and all-to-all of float32 vectors. All ranks must call this.

    ``sizes`` are in bytes, smallest first. Sizes that would take too long are skipped. Returns the fields of
    one :class:`Timing` per operation and size, the same on every rank.
    """
    found = []
    for name, collective in (("all-reduce", _all_reduce), ("all-to-all", _all_to_all)):
        for size in sizes:
            vector = torch.ones(size // 4 // dist.get_world_size() * dist.get_world_size())
            seconds = _median(lambda vector=vector, work=collective: work(vector))  # type: ignore[misc]
            found.append(asdict(Timing(name, size, seconds)))
            if seconds * 4 > _MOST:
                break
    return found


def measure_exchange(parameters: int, micro_batches: int) -> float:
    """Measure how many seconds it takes to exchange ``parameters`` float32 gradients along the fixed tree.

    All ranks must call this.
    """
    exchange = Exchange(micro_batches, dist.get_rank(), dist.get_world_size())
    bucket = BUCKET_MIB * 2**20 // 4
    lengths = [min(bucket, parameters - begin) for begin in range(0, parameters, bucket)]

    def step() -> None:
        for length in lengths:
            sums = [torch.ones(length) for _ in exchange.nodes[exchange.rank]]
            pending = exchange.start(sums, torch.empty(length))
            pending.combine()
            pending.finish()

    return _median(step)


def _all_reduce(vector: Tensor) -> None:
    dist.all_reduce(vector)
    vector.fill_(1)


def _all_to_all(vector: Tensor) -> None:
    dist.all_to_all_single(torch.empty_like(vector), vector)


def _median(work: Callable[[], None]) -> float:
    once = _slowest([_timed(work)])  # TCP windows grow during this
    if once > _LONG:
        return once
    count = int(min(max(_BUDGET / max(once, 1e-6), 1), _TIMES))
    return _slowest(sorted(_timed(work) for _ in range(count)))


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _slowest(times: Sequence[float]) -> float:
    """Return the largest of the ranks' medians, given each rank's sorted ``times``."""
    seconds = torch.tensor(times[len(times) // 2], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)
