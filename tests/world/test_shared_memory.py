"""Gradients that ranks of one machine add in memory which all of them see."""

from __future__ import annotations

import gc
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rankless.world import shared_memory
from rankless.world.exchange import Exchange, Pending
from rankless.world.process_group import World
from rankless.world.transport import PROCESS_GROUP

LENGTHS = (1, 7, 1000, 64, 3)
STEPS = 20

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no anonymous files"),
]


def shared(layout: Exchange, length: int) -> shared_memory.SharedMemory | None:
    PROCESS_GROUP.on_one_machine = True
    found = shared_memory.share(layout, [torch.empty(n) for n in LENGTHS[:length]])
    PROCESS_GROUP.on_one_machine = False
    return found


def leaf(step: int, number: int, length: int) -> torch.Tensor:
    """Whole numbers, whose sums are exact in any order."""
    return torch.full((length,), float(step * 100 + number)) + torch.arange(length)


def held_up(world: World, leaves: int) -> bool:
    """Whether all totals of many steps are right on a rank that is late at random moments."""
    delays = random.Random(world.rank)
    layout = Exchange(leaves, world.rank, world.size)
    memory = shared(layout, len(LENGTHS))
    assert memory

    def late() -> None:
        if delays.random() < 0.3:
            time.sleep(delays.random() * 0.004)

    for step in range(STEPS):
        under_way: list[Pending] = []
        for length in LENGTHS:
            late()
            sums = layout.fold(leaf(step, number, length) for number in layout.own)
            under_way.append(memory.start(sums, torch.empty(length)))
        for one in under_way:
            late()
            one.combine()
        for one in under_way:
            late()
            one.finish()
        memory.begin_again()
        for length, one in zip(LENGTHS, under_way, strict=True):
            if not one.result.equal(sum(leaf(step, number, length) for number in range(leaves))):
                return False
    return True


@pytest.mark.parametrize(("size", "leaves"), [(2, 6), (3, 7), (4, 4)])
def test_late_ranks_change_nothing(ranks: Any, size: int, leaves: int) -> None:
    assert ranks(size, held_up, leaves) == [True] * size


def unseen(world: World, blind: int) -> bool:
    """Whether this rank shares memory where rank ``blind`` may not look at other processes."""
    with pytest.MonkeyPatch.context() as patch:
        if world.rank == blind:
            patch.setattr(Path, "readlink", refused)
        return shared(Exchange(4, world.rank, world.size), 1) is not None


def refused(path: Path) -> Path:
    raise PermissionError(path)


@pytest.mark.parametrize("blind", [0, 1, 2])
def test_where_one_rank_does_not_see_the_memory_nobody_uses_it(ranks: Any, blind: int) -> None:
    assert ranks(3, unseen, blind) == [False] * 3
    assert ranks(3, unseen, 3) == [True] * 3


def left_behind(world: World) -> tuple[int, int, int]:
    memory = shared(Exchange(4, world.rank, world.size), 5)
    during = mapped()
    del memory
    gc.collect()
    files = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return during, mapped(), sum("memfd:rankless-" in str(file) for file in files)


def mapped() -> int:
    return sum("memfd:rankless" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_it_goes_with_those_who_use_it(ranks: Any) -> None:
    assert ranks(2, left_behind) == [(1, 0, 0)] * 2


def elsewhere(world: World) -> list[bool]:
    layout = Exchange(4, world.rank, world.size)
    apart = shared_memory.share(layout, [torch.empty(3)])
    PROCESS_GROUP.on_one_machine = True
    other_device = shared_memory.share(layout, [torch.empty(3, device="meta")])
    PROCESS_GROUP.on_one_machine = False
    return [apart is None, other_device is None]


def test_it_is_for_one_machine_and_for_tensors_on_the_cpu(ranks: Any) -> None:
    assert ranks(2, elsewhere) == [[True, True]] * 2
