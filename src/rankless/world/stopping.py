"""A request to stop that reaches all ranks without a collective."""

from __future__ import annotations

from collections.abc import Callable

from rankless.world.compat import default_store
from rankless.world.process_group import World

_KEY = "rankless/stop"


class SharedStop:
    """A flag in the ranks' store that is set once any rank has received a request to stop.

    Reading it takes a few microseconds. Ranks may see it at different times, so they must call :meth:`agreed`
    to stop together. The flag cannot be reset.
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
                default_store().set(_KEY, "1")
            self._raised = True
        elif self.world.size > 1:
            self._raised = bool(default_store().check([_KEY]))
        return self._raised

    def agreed(self) -> bool:
        """Return whether any rank should stop, the same on all ranks. All ranks must call this."""
        flags = self.world.gather(self())
        self._raised = bool(self.world.broadcast(any(flags) if flags is not None else None))
        return self._raised
