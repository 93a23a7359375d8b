"""What is wrong with a data set: counted by kind, with the place of the first few of each.

Every kind has one outcome, stated here and in docs/data.md. What damages a single box costs that box; what
says that a file is misunderstood (its classes, its columns, its units) stops a training, because going on
would train something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rankless.errors import UserError

FIRST = 20
"""So many findings of a kind are listed; the others are counted."""

Outcome = Literal["stops", "dropped", "clipped", "replaced", "reported"]


class Kind(NamedTuple):
    """One way in which data can be wrong.

    Attributes:
        outcome: of training: it ``stops`` before it begins; the box or image is ``dropped``; the box is
            ``clipped``; the image is ``replaced`` by another while training; it is merely ``reported``.
        what: several of them, as the end of "3 …".
    """

    outcome: Outcome
    what: str


KINDS: dict[str, Kind] = {
    # The file.
    "unreadable file": Kind("stops", "annotation files cannot be read"),
    "not understood": Kind("stops", "lines or entries are not of the format"),
    "not a number": Kind("stops", "boxes have a coordinate or class that is not a number"),
    # The class.
    "class out of range": Kind("stops", "boxes have a class number without a name"),
    "unnamed class": Kind("stops", "boxes have a class that the class names do not have"),
    # The box.
    "not normalized": Kind("stops", "boxes are not normalized to 0–1 (are they pixels?)"),
    "not finite": Kind("dropped", "boxes are NaN or infinite"),
    "no size": Kind("dropped", "boxes have no width or no height"),
    "ends before it begins": Kind("dropped", "boxes end before they begin"),
    "outside": Kind("dropped", "boxes lie outside their image"),
    "repeated": Kind("dropped", "boxes repeat another of the same image, class and coordinates"),
    "over the edge": Kind("clipped", "boxes reach over the edge of their image"),
    "counted from 0": Kind("reported", "boxes begin at pixel 0 in a format that counts from 1"),
    "a pixel thin": Kind("reported", "boxes are at most one pixel wide or high"),
    "outline": Kind("reported", "boxes are the bounds of an outline, because no box is given"),
    "difficult": Kind("reported", "boxes are marked difficult: neither trained on nor scored"),
    "crowd": Kind("reported", "boxes mark a crowd: neither trained on nor scored"),
    # The image.
    "no image": Kind("dropped", "annotated images do not exist"),
    "unreadable image": Kind("replaced", "images cannot be read"),
    "listed twice": Kind("dropped", "images are listed more than once"),
    "no class": Kind("dropped", "images have no class"),
    "no label file": Kind("reported", "images have no label file and count as empty"),
    "label without image": Kind("reported", "label files have no image"),
    "empty": Kind("reported", "images have no boxes"),
    "other size": Kind("reported", "images are of another size than their annotation says"),
    "sideways": Kind("reported", "images are turned by EXIF and annotated as if they were not"),
    "unknown image": Kind("dropped", "annotations are of an image that is not listed"),
    "repeated id": Kind("reported", "annotation ids are given more than once"),
    "left out": Kind("reported", "files were left out"),
    "same image twice": Kind("reported", "images have the bytes of another of the split"),
    "same in two splits": Kind("reported", "images are in two splits, byte for byte: scores are too good"),
}


class Finding(NamedTuple):
    """One thing that is wrong.

    Attributes:
        where: file, or file and line.
        problem: what was found and what was expected.
    """

    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}" if self.problem else self.where


@dataclass
class Findings:
    """All that is wrong with a data set.

    Attributes:
        counts: kind to number.
        first: kind to the first of them, :data:`FIRST` at most.
    """

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[Finding]] = field(default_factory=dict)

    def add(self, kind: str, where: str, problem: str = "") -> None:
        """Count one finding; ``kind`` is of :data:`KINDS`."""
        self.add_many(kind, 1, [Finding(where, problem)])

    def add_many(self, kind: str, count: int, first: Iterable[Finding]) -> None:
        """Count several of a kind; of ``first`` at most :data:`FIRST` are drawn and listed."""
        if kind not in KINDS:
            raise KeyError(kind)
        if not count:
            return
        self.counts[kind] = self.counts.get(kind, 0) + count
        listed = self.first.setdefault(kind, [])
        for finding in first:
            if len(listed) >= FIRST:
                break
            listed.append(finding)

    def update(self, other: Findings) -> None:
        """Add another part's findings behind these."""
        for kind, count in other.counts.items():
            self.add_many(kind, count, other.first.get(kind, ()))

    def __iter__(self) -> Iterator[tuple[str, int, list[Finding]]]:
        """(kind, number, first of them) in the order of :data:`KINDS`."""
        return ((kind, self.counts[kind], self.first.get(kind, [])) for kind in KINDS if kind in self.counts)

    def stop(self, last: str) -> None:
        """Raise the findings that stop a training, if there are any; ``last`` says what to do.

        Raises:
            UserError: the first of every such kind in full, the others counted.
        """
        stopping = [each for each in self if KINDS[each[0]].outcome == "stops"]
        if not stopping:
            return
        sentences: list[str] = []
        for kind, count, first in stopping:
            shown = first[: max(3, FIRST // len(stopping))]
            sentences += [f"{where}: {kind}: {problem}" for where, problem in shown]
            if count > len(shown):
                sentences.append(f"… and {count - len(shown)} more: {kind}.")
        raise UserError([*sentences, last])

    def notes(self) -> list[str]:
        """What does not stop a training, as sentences with counts."""
        made = []
        for kind, count, first in self:
            outcome, what = KINDS[kind]
            if outcome == "stops":
                continue
            done = {"dropped": ", left out", "clipped": ", clipped"}.get(outcome, "")
            made.append(f"{what}: {count}{done}" + (f"; the first: {first[0]}" if first else ""))
        return made

    def as_json(self) -> dict[str, Any]:
        """For a file or a program."""
        return {
            kind: {"count": count, "outcome": KINDS[kind].outcome, "first": [list(one) for one in first]}
            for kind, count, first in self
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Findings:
        """The reverse of :meth:`as_json`."""
        made = cls()
        for kind, entry in value.items():
            made.add_many(kind, entry["count"], [Finding(*one) for one in entry["first"]])
        return made
