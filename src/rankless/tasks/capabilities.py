"""What data sets and batches may offer besides what they must have, with defaults where they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rankless.structures import Unreadable


@dataclass(frozen=True)
class Capabilities:
    """The optional members of a :class:`rankless.tasks.protocol.Examples`, described there."""

    notes: tuple[str, ...] = ()
    digest: str | None = None
    facts: Callable[[int], dict[str, Any]] = lambda step: {}
    evaluation_order: Callable[[], Any] = lambda: None


def capabilities(examples: object) -> Capabilities:
    """The optional members that a data set has; the defaults for the others."""
    notes, digest = getattr(examples, "notes", ()), getattr(examples, "digest", None)
    methods = {
        name: method
        for name in ("facts", "evaluation_order")
        if callable(method := getattr(examples, name, None))  # there may be data of that name
    }
    return Capabilities(tuple(notes), digest, **methods)


def unreadable_in(batch: object) -> Sequence[Unreadable]:
    """The images that could not be read for a batch, where it keeps account of them."""
    found: Sequence[Unreadable] = getattr(batch, "unreadable", ())
    return found
