"""Optional members of data sets and batches, with their defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rankless.structures import Unreadable


@dataclass(frozen=True)
class Capabilities:
    """The optional members of a data set, documented in :class:`rankless.tasks.protocol.Examples`."""

    notes: tuple[str, ...] = ()
    digest: str | None = None
    facts: Callable[[int], dict[str, Any]] = lambda step: {}
    evaluation_order: Callable[[], Any] = lambda: None
    files: Callable[[], Sequence[str]] = lambda: ()


def capabilities(examples: object) -> Capabilities:
    """Return the optional members of a data set, or their defaults."""
    notes, digest = getattr(examples, "notes", ()), getattr(examples, "digest", None)
    methods = {
        name: method
        for name in ("facts", "evaluation_order", "files")
        if callable(method := getattr(examples, name, None))  # an attribute may have that name
    }
    return Capabilities(tuple(notes), digest, **methods)


def unreadable_in(batch: object) -> Sequence[Unreadable]:
    """Return the unreadable images of a batch. A batch that does not record them has none."""
    unreadable: Sequence[Unreadable] = getattr(batch, "unreadable", ())
    return unreadable
