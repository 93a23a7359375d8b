"""How faults of a data set are told: all at once, the first few in full and the others counted by kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

SHOWN = 20
"""So many faults are told in full."""


class Fault(NamedTuple):
    """One thing that is wrong.

    Attributes:
        place: file, or file and line.
        kind: a few words by which faults are counted.
        found: what was found and what was expected.
    """

    place: str
    kind: str
    found: str


def told(faults: Sequence[Fault], last: str) -> list[str]:
    """The faults as sentences, in the order given; ``last`` says how many there are and what to do."""
    sentences = [f"{place}: {kind}: {found}" for place, kind, found in faults[:SHOWN]]
    rest = Counter(fault.kind for fault in faults[SHOWN:])
    if rest:
        kinds = ", ".join(f"{count} × {kind}" for kind, count in sorted(rest.items()))
        sentences.append(f"… and {rest.total()} more: {kinds}.")
    return [*sentences, last]
