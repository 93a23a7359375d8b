"""Count the problems in a data set by kind, and record the locations of the first few of each kind.

Every kind has one outcome, listed here and in docs/data.md. A problem in a single box affects only that box.
If a problem means that a file's classes, columns or units are misunderstood, training stops, because the
model would learn something else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

from rankless.errors import counted

FIRST = 20
"""The number of findings of a kind that are listed. The others are only counted."""

Outcome = Literal["stops", "dropped", "clipped", "replaced", "reported"]


class Kind(NamedTuple):
    """A kind of problem in data.

    Attributes:
        outcome: the effect on training: the problem ``stops`` it; the box or image is ``dropped``; the box is
            ``clipped``; the image is ``replaced`` by another; or the problem is only ``reported``.
        one: the start of a sentence about one case, as in "1 box has …".
        many: the start of a sentence about several cases.
        rest: the end of either sentence.
    """

    outcome: Outcome
    one: str
    many: str
    rest: str = ""

    @property
    def what(self) -> str:
        """Return the description of several cases without their number, as in "3 …"."""
        return f"{self.many} {self.rest}".rstrip()

    def counted(self, count: int) -> str:
        """Return a sentence with the count, such as "1 box has no width or no height"."""
        return f"{counted(count, self.one, self.many)} {self.rest}".rstrip()


KINDS: dict[str, Kind] = {
    # The file.
    "unreadable file": Kind("stops", "annotation file", "annotation files", "cannot be read"),
    "not understood": Kind("stops", "line or entry is", "lines or entries are", "not in the expected format"),
    "not a number": Kind("stops", "box has", "boxes have", "a coordinate or class that is not a number"),
    # The class.
    "class out of range": Kind("stops", "box has", "boxes have", "a class number without a name"),
    "unnamed class": Kind("stops", "box has", "boxes have", "a class that is not among the class names"),
    # The box.
    "not normalized": Kind("stops", "box is", "boxes are", "not normalized to 0–1 (pixels?)"),
    "not finite": Kind("dropped", "box is", "boxes are", "NaN or infinite"),
    "no size": Kind("dropped", "box has", "boxes have", "no width or no height"),
    "ends before it begins": Kind("dropped", "box ends before it begins", "boxes end before they begin"),
    "outside": Kind("dropped", "box lies", "boxes lie", "outside the image"),
    "repeated": Kind(
        "dropped", "box repeats", "boxes repeat", "another one with the same image, class and coordinates"
    ),
    "over the edge": Kind("clipped", "box reaches", "boxes reach", "over the edge of the image"),
    "counted from 0": Kind(
        "reported", "box begins", "boxes begin", "at pixel 0 in a format that counts from 1"
    ),
    "a pixel thin": Kind("reported", "box is", "boxes are", "at most one pixel wide or high"),
    "outline": Kind("reported", "box is", "boxes are", "the bounds of an outline, because no box is given"),
    "turned": Kind("reported", "box is", "boxes are", "the upright bounds of a rotated box"),
    "difficult": Kind("reported", "box is", "boxes are", "marked difficult: neither trained on nor scored"),
    "crowd": Kind("reported", "box marks", "boxes mark", "a crowd: neither trained on nor scored"),
    # The image.
    "no image": Kind("dropped", "annotated image does", "annotated images do", "not exist"),
    "unreadable image": Kind("replaced", "image", "images", "cannot be read"),
    "listed twice": Kind("dropped", "image is", "images are", "listed more than once"),
    "no class": Kind("dropped", "image has", "images have", "no class"),
    "no label file": Kind(
        "reported",
        "image has no label file and counts as empty",
        "images have no label file and count as empty",
    ),
    "label without image": Kind("reported", "label file has", "label files have", "no image"),
    "empty": Kind("reported", "image has", "images have", "no boxes"),
    "other format": Kind("reported", "image is", "images are", "in another format than the extension says"),
    "other size": Kind("reported", "image is", "images are", "of another size than the annotation says"),
    "no stated size": Kind(
        "reported", "annotation gives", "annotations give", "no valid width and height of the image"
    ),
    "sideways": Kind("reported", "image is", "images are", "turned by EXIF, but annotated as if not turned"),
    "unknown image": Kind("dropped", "annotation is", "annotations are", "for an image that is not listed"),
    "repeated id": Kind("reported", "annotation id is", "annotation ids are", "given more than once"),
    "left out": Kind("reported", "file was", "files were", "left out"),
    "same image twice": Kind(
        "reported", "image has", "images have", "the same bytes as another one in the split"
    ),
    "same in two splits": Kind(
        "reported", "image is", "images are", "in two splits, byte for byte: scores are too good"
    ),
    "nearly same in two splits": Kind(
        "reported",
        "image is",
        "images are",
        "nearly the same as one in another split: scores may be too good",
    ),
}


class Finding(NamedTuple):
    """One problem in a data set.

    Attributes:
        where: the file, or the file and line.
        problem: the value that was found and the value that was expected.
    """

    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}" if self.problem else self.where


@dataclass
class Findings:
    """All problems found in a data set.

    Attributes:
        counts: the number of findings of each kind.
        first: the first findings of each kind, at most :data:`FIRST`.
    """

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[Finding]] = field(default_factory=dict)

    def add(self, kind: str, where: str, problem: str = "") -> None:
        """Add one finding of a ``kind`` from :data:`KINDS`."""
        self.add_many(kind, 1, [Finding(where, problem)])

    def add_many(self, kind: str, count: int, first: Iterable[Finding]) -> None:
        """Add several findings of a kind, of which ``first`` gives the first few."""
        if kind not in KINDS:
            raise KeyError(kind)
        if not count:
            return
        self.counts[kind] = self.counts.get(kind, 0) + count
        listed = self.first.setdefault(kind, [])
        listed += islice(first, FIRST - len(listed))

    def update(self, other: Findings) -> None:
        """Add the findings of another part of the data set."""
        for kind, count in other.counts.items():
            self.add_many(kind, count, other.first.get(kind, ()))

    def __iter__(self) -> Iterator[tuple[str, int, list[Finding]]]:
        """Yield each kind, its count and its first findings, in the order of :data:`KINDS`."""
        return ((kind, self.counts[kind], self.first.get(kind, [])) for kind in KINDS if kind in self.counts)

    def stopping(self, also: Sequence[str] = ()) -> list[str]:
        """Return sentences about the problems that stop training, with the first of each kind and counts.

        ``also`` lists further kinds that stop this training run.
        """
        stopping = [each for each in self if KINDS[each[0]].outcome == "stops" or each[0] in also]
        sentences: list[str] = []
        for kind, count, first in stopping:
            shown = first[: max(3, FIRST // len(stopping))]
            sentences += [f"{where}: {kind}: {problem}" for where, problem in shown]
            if count > len(shown):
                sentences.append(f"… and {count - len(shown):,} more: {kind}")
        return sentences

    def notes(self, but: Collection[str] = ()) -> list[str]:
        """Return sentences about the problems that do not stop training, except for the kinds in ``but``."""
        made = []
        for kind, count, first in self:
            outcome = KINDS[kind].outcome
            if outcome == "stops" or kind in but:
                continue
            done = {"dropped": ", left out", "clipped": ", clipped"}.get(outcome, "")
            sentence = f"{KINDS[kind].counted(count)}{done}"
            made.append(sentence + (f"; the first: {first[0]}" if first else ""))
        return made

    def as_json(self) -> dict[str, Any]:
        """Return the counts and first findings as JSON-compatible data."""
        return {
            kind: {"count": count, "outcome": KINDS[kind].outcome, "first": [list(one) for one in first]}
            for kind, count, first in self
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Findings:
        """Restore findings from the result of :meth:`as_json`."""
        made = cls()
        for kind, entry in value.items():
            made.add_many(kind, entry["count"], [Finding(*one) for one in entry["first"]])
        return made
