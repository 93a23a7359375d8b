"""Short messages and a flag that ranks exchange through their store without waiting for each other."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rankless.world.process_group import World

_KEY, _STOP = "rankless/note", "rankless/stop"
_POLL = 0.02  # seconds

Note = dict[str, Any]


class Notes:
    """The ranks' notes about how they ended. Create this object while the process group exists."""

    def __init__(self, world: World) -> None:
        self.world, self.store = world, world.transport.store

    def leave(self, note: Note) -> None:
        """Store this rank's note unless the store no longer exists."""
        with suppress(RuntimeError):
            self.store.set(f"{_KEY}/{self.world.rank}", json.dumps(note))

    def wait(self, seconds: float, enough: Callable[[Sequence[Note]], bool]) -> list[Note]:
        """Return the notes in rank order once ``enough`` accepts them, or after ``seconds`` at the latest."""
        until = time.monotonic() + seconds
        found: dict[int, Note] = {}
        with suppress(RuntimeError, ValueError):  # the store no longer exists
            while True:
                for rank in set(range(self.world.size)) - found.keys():
                    if self.store.check([f"{_KEY}/{rank}"]):
                        found[rank] = json.loads(self.store.get(f"{_KEY}/{rank}"))
                if time.monotonic() > until or enough(list(found.values())):
                    break
                time.sleep(_POLL)
        return [found[rank] for rank in sorted(found)]


class SharedStop:
    """A flag in the ranks' store that is set once any rank has received a request to stop.

    Ranks may see the flag at different times, so they must call :meth:`agreed` to stop together. The flag
    cannot be reset.
    """

    def __init__(self, world: World, own: Callable[[], bool]) -> None:
        self.world, self.own = world, own
        self._raised = False

    def __call__(self) -> bool:
        """Return whether to stop, and set the flag if this rank has received a request."""
        if self._raised:
            return True
        if self.own():
            if self.world.size > 1:
                self.world.transport.store.set(_STOP, "1")
            self._raised = True
        elif self.world.size > 1:
            self._raised = bool(self.world.transport.store.check([_STOP]))
        return self._raised

    def agreed(self) -> bool:
        """Return whether any rank should stop, the same on all ranks. All ranks must call this."""
        self._raised = any(self.world.all_gather(self()))
        return self._raised
