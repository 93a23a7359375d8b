"""A request to stop that reaches all ranks between two meetings, without one waiting for another."""

from __future__ import annotations

from collections.abc import Callable

from rankless.world.compat import default_store
from rankless.world.process_group import World

_KEY = "rankless/stop"


class SharedStop:
    """Whether any rank was asked to stop, as far as this rank can know now.

    It is a flag in the ranks' store: reading it takes some microseconds, and ranks may see it at different
    moments, so they still have to agree when they meet. Once raised it stays as long as the process group.
    """

    def __init__(self, world: World, own: Callable[[], bool]) -> None:
        self.world, self.own = world, own
        self._raised = False

    def __call__(self) -> bool:
        """Return whether to stop; raise the flag for the others if this rank was asked."""
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
        """Return whether any rank is to stop, equal on every rank; all ranks must call this."""
        answers = self.world.gather(self())
        self._raised = bool(self.world.broadcast(any(answers) if answers is not None else None))
        return self._raised
