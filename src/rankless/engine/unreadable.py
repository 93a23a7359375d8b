"""The images that a run could not read. Each is reported once, and too many of them end the run.

All ranks have the same list, so they make the same decision. The list is saved with the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rankless.engine.evaluate import listed
from rankless.structures import Unreadable
from rankless.world.process_group import World


class UnreadableImages:
    """The unreadable training and evaluation images of a run by index.

    ``max_bad`` is the maximum fraction of training images that may be unreadable (``data.max_bad``).
    """

    def __init__(self, images: int, max_bad: float) -> None:
        self.images, self.max_bad = images, max_bad
        self.trained: dict[int, Unreadable] = {}
        self.scored: dict[int, Unreadable] = {}

    def meet(self, world: World, mine: Sequence[Unreadable]) -> list[Unreadable]:
        """Add the images that ranks could not read in a step, and return the new ones sorted by index.

        All ranks must call this.
        """
        return _added(self.trained, sorted({one for rank in world.all_gather(list(mine)) for one in rank}))

    def score(self, images: Iterable[Unreadable]) -> list[Unreadable]:
        """Add the unreadable images of an evaluation, and return the new ones."""
        return _added(self.scored, images)

    def too_many(self) -> list[str]:
        """Return error messages if too many images are unreadable, otherwise an empty list."""
        count = len(self.trained)
        if count <= self.max_bad * self.images:
            return []
        return [
            *listed(self.trained.values()),
            f"data.max_bad is {self.max_bad:g}, but {count} of the {self.images} training images cannot be "
            "read; replace them or increase data.max_bad, and continue with --resume, or remove them from "
            "the data and start again",
        ]

    def as_json(self) -> dict[str, Any]:
        return {"trained": list(self.trained.values()), "scored": list(self.scored.values())}

    def restore(self, value: Mapping[str, Any]) -> None:
        """Restore the images from :meth:`as_json`, without the training images if there are too many."""
        self.trained = {one[0]: Unreadable(*one) for one in value.get("trained", ())}
        self.scored = {one[0]: Unreadable(*one) for one in value.get("scored", ())}
        if self.too_many():
            self.trained = {}


def _added(known: dict[int, Unreadable], images: Iterable[Unreadable]) -> list[Unreadable]:
    new = {one.index: one for one in images if one.index not in known}
    known.update(new)
    return list(new.values())
