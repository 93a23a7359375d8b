"""The images that a run could not read: each is told once, and too many end the run.

Whoever met them, all ranks hold the same list, so they decide alike; it is saved with the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rankless.engine.evaluate import listed
from rankless.structures import Unreadable
from rankless.world.process_group import World


class UnreadableImages:
    """Distinct unreadable images, by their number.

    Args:
        images: how many there are to train on.
        share: ``data.max_bad``, the largest share of them that may be unreadable.

    Attributes:
        trained: those that were to be trained on.
        scored: those that were to be scored.
    """

    def __init__(self, images: int, share: float) -> None:
        self.images, self.share = images, share
        self.trained: dict[int, Unreadable] = {}
        self.scored: dict[int, Unreadable] = {}

    def meet(self, world: World, own: Sequence[Unreadable]) -> list[Unreadable]:
        """Exchange what the ranks could not read in a step; every rank must call it.

        Returns:
            The new ones, by number; the same on every rank.
        """
        gathered = world.gather(list(own))
        found = world.broadcast(sorted({one for rank in gathered for one in rank}) if gathered else None)
        return _added(self.trained, found)

    def score(self, found: Iterable[Unreadable]) -> list[Unreadable]:
        """Those of an evaluation's that are new; ``found`` is the same on every rank."""
        return _added(self.scored, found)

    def too_many(self) -> list[str]:
        """What ends the run, as sentences; nothing as long as there are few enough."""
        count = len(self.trained)
        if count <= self.share * self.images:
            return []
        return [
            *listed(self.trained.values()),
            f"{count} of the {self.images} training images cannot be read, which is more than "
            f"data.max_bad ({self.share:g}) allows: replace them, or give a larger data.max_bad, and go on "
            "with --resume; or take them out of the data and start anew",
        ]

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"trained": list(self.trained.values()), "scored": list(self.scored.values())}

    def restore(self, value: Mapping[str, Any]) -> None:
        """The reverse of :meth:`as_json`; too many of them were mended since, or are to be found again."""
        self.trained = {one[0]: Unreadable(*one) for one in value.get("trained", ())}
        self.scored = {one[0]: Unreadable(*one) for one in value.get("scored", ())}
        if self.too_many():
            self.trained = {}


def _added(known: dict[int, Unreadable], found: Iterable[Unreadable]) -> list[Unreadable]:
    new = {one.index: one for one in found if one.index not in known}
    known.update(new)
    return list(new.values())
