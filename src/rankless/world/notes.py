"""Short texts that ranks leave for each other in their store: nobody has to wait for them, or to answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rankless.world.compat import default_store
from rankless.world.process_group import World

_KEY = "rankless/note"
_POLL = 0.02  # seconds

Note = dict[str, Any]


class Notes:
    """The endings of a start's ranks; made while the process group is up, and readable after it."""

    def __init__(self, world: World) -> None:
        self.world, self.store = world, default_store()

    def leave(self, note: Note) -> None:
        """Leave this rank's note; where the store is gone there is nobody to read it."""
        with suppress(RuntimeError):
            self.store.set(f"{_KEY}/{self.world.rank}", json.dumps(note))

    def wait(self, seconds: float, enough: Callable[[Sequence[Note]], bool]) -> list[Note]:
        """The notes of all ranks in their order, as soon as they are ``enough``, or after some seconds."""
        until = time.monotonic() + seconds
        found: dict[int, Note] = {}
        with suppress(RuntimeError, ValueError):  # the store is gone
            while True:
                for rank in set(range(self.world.size)) - found.keys():
                    if self.store.check([f"{_KEY}/{rank}"]):
                        found[rank] = json.loads(self.store.get(f"{_KEY}/{rank}"))
                if time.monotonic() > until or enough(list(found.values())):
                    break
                time.sleep(_POLL)
        return [found[rank] for rank in sorted(found)]


class Notices:
    """One text per rank; a new one replaces the previous one."""

    def __init__(self, name: str) -> None:
        self._name = f"rankless/{name}"

    def post(self, rank: int, text: str) -> None:
        """Leave a text."""
        default_store().set(f"{self._name}/{rank}", text)

    def read(self, rank: int) -> str | None:
        """The text of a rank, None where it has left none."""
        key = f"{self._name}/{rank}"
        store = default_store()
        return store.get(key).decode() if store.check([key]) else None
