"""Ranks of a test that are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from rankless.world.process_group import World
from rankless.world.thread_transport import Meeting, thread_ranks

CPU = torch.device("cpu")


def together(size: int, work: Callable[[World], Any]) -> list[Any]:
    """The answers of ``work`` on ranks that are threads, or their errors."""
    meeting = Meeting(size)
    worlds = thread_ranks(meeting, [CPU] * size)
    found: list[Any] = [None] * len(worlds)

    def rank(world: World) -> None:
        try:
            found[world.rank] = work(world)
        except Exception as error:
            found[world.rank] = error
        finally:
            meeting.leave(world.rank)

    threads = [threading.Thread(target=rank, args=(world,), daemon=True) for world in worlds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return found
