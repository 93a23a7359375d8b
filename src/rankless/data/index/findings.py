"""Count problems in a data set by kind, and record the first few of each kind.

Every kind has one outcome; see :data:`KINDS` and docs/data.md. A problem in one box usually affects only that
box. Problems that suggest misread classes, columns or units stop training, because the model would learn from
wrong data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

from rankless.errors import counted

FIRST = 20  # Maximum number of findings of a kind that are listed. Further findings are only counted.

Outcome = Literal["stops", "needs range", "dropped", "clipped", "replaced", "reported"]


class Kind(NamedTuple):
    """A kind of problem in a data set.

    Attributes:
        outcome: ``stops`` (training stops), ``needs range`` (training stops unless ``data.range`` is set),
            ``dropped`` (the box or image is ignored), ``clipped`` (the box is clipped), ``replaced`` (another
            image replaces the image) or ``reported`` (no effect).
    """

    outcome: Outcome
    one: str  # start of the description of one case, without the number, such as "box has"
    many: str  # start of the description of several cases, without the number, such as "boxes have"
    rest: str = ""  # end of both descriptions

    @property
    def what(self) -> str:
        """Description of several cases without the number, such as "boxes have no width or no height"."""
        return f"{self.many} {self.rest}".rstrip()

    def counted(self, count: int) -> str:
        """Return a sentence with the number of cases, such as "1 box has no width or no height"."""
        return f"{counted(count, self.one, self.many)} {self.rest}".rstrip()


KINDS: dict[str, Kind] = {
    # Files
    "unreadable file": Kind("stops", "annotation file", "annotation files", "cannot be read"),
    "not understood": Kind("stops", "line or entry is", "lines or entries are", "not in the expected format"),
    "not a number": Kind("stops", "box has", "boxes have", "a coordinate or class that is not a number"),
    "other form": Kind("stops", "box is", "boxes are", "in an unknown form, or not in that of the format"),
    "shared file": Kind(
        "stops", "entry lists", "entries list", "the image file of another entry with other annotations"
    ),
    # Classes
    "class out of range": Kind("stops", "box has", "boxes have", "a class number without a class name"),
    "unnamed class": Kind("stops", "box has", "boxes have", "a class that is not in the list of classes"),
    # Boxes
    "not normalized": Kind("stops", "box is", "boxes are", "not normalized to 0–1 (probably in pixels)"),
    "not finite": Kind("dropped", "box has", "boxes have", "NaN or infinite coordinates"),
    "no size": Kind("dropped", "box has", "boxes have", "no width or no height"),
    "ends before it begins": Kind("dropped", "box has", "boxes have", "a negative width or height"),
    "outside": Kind("dropped", "box is", "boxes are", "outside the image"),
    "repeated": Kind("dropped", "box has", "boxes have", "the same image, class and coordinates as another"),
    "over the edge": Kind("clipped", "box extends", "boxes extend", "beyond the edge of the image"),
    "counted from 0": Kind("reported", "box starts", "boxes start", "at pixel 0, but the first pixel is 1"),
    "a pixel thin": Kind("reported", "box is", "boxes are", "at most one pixel wide or high"),
    "outline": Kind("reported", "box is", "boxes are", "computed from an outline (no box is annotated)"),
    "key points": Kind("reported", "box has", "boxes have", "key points (not used)"),
    "turned": Kind("reported", "box is", "boxes are", "rotated; the upright bounding box is used instead"),
    "not a box": Kind(
        "dropped", "annotation has", "annotations have", "no box (such as points, lines or tags)"
    ),
    "difficult": Kind("reported", "box is", "boxes are", "marked difficult (ignored in training and scores)"),
    "crowd": Kind("reported", "box marks", "boxes mark", "a crowd (ignored in training and scores)"),
    # Images
    "no image": Kind("dropped", "annotated image does", "annotated images do", "not exist"),
    "unreadable image": Kind("replaced", "image", "images", "cannot be read"),
    "listed twice": Kind("dropped", "image is", "images are", "listed more than once"),
    "no class": Kind("dropped", "image has", "images have", "no class"),
    "no label file": Kind("reported", "image has", "images have", "no label file (treated as empty)"),
    "label without image": Kind("reported", "label file has", "label files have", "no image"),
    "empty": Kind("reported", "image has", "images have", "no boxes"),
    "other format": Kind("reported", "image has", "images have", "a format that differs from the extension"),
    "other size": Kind("reported", "image has", "images have", "a size that differs from the annotated size"),
    "no stated size": Kind("reported", "annotation gives", "annotations give", "no valid image size"),
    "few levels": Kind(
        "reported",
        "16-bit image (of a sample) fills",
        "16-bit images (of a sample) fill",
        "few of the 256 levels",
    ),
    "unknown range": Kind("needs range", "image has", "images have", "values of unknown range"),
    "sideways": Kind("reported", "image is", "images are", "rotated by EXIF, but annotated as not rotated"),
    "unknown image": Kind("dropped", "annotation is", "annotations are", "for an image that is not listed"),
    "repeated id": Kind("reported", "annotation id is", "annotation ids are", "used more than once"),
    "left out": Kind("reported", "file was", "files were", "ignored"),
    "same image twice": Kind("reported", "image is", "images are", "identical to another in the split"),
    "same in two splits": Kind(
        "reported", "image is", "images are", "in two splits (identical bytes), so scores are too high"
    ),
    "nearly same in two splits": Kind(
        "reported",
        "image is",
        "images are",
        "nearly identical to one in another split (scores may be too high)",
    ),
}


UNKNOWN_RANGE = "unknown range"
OF_RANGE = ("few levels", UNKNOWN_RANGE)
"""Kinds that do not apply if ``data.range`` is set."""


class Finding(NamedTuple):
    """One problem in a data set.

    ``where`` is the path of the file, possibly with the line, and ``problem`` describes the value found and
    the value expected, or is empty.
    """

    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}" if self.problem else self.where


@dataclass
class Findings:
    """All problems found in a data set: the number of each kind, and the first :data:`FIRST` of each kind."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[Finding]] = field(default_factory=dict)

    def add(self, kind: str, where: str, problem: str = "") -> None:
        """Add one finding; ``kind`` is a key of :data:`KINDS`."""
        self.add_many(kind, 1, [Finding(where, problem)])

    def add_many(self, kind: str, count: int, first: Iterable[Finding]) -> None:
        """Add ``count`` findings of one kind; ``first`` are the first few of them."""
        if kind not in KINDS:
            raise KeyError(kind)
        if not count:
            return
        self.counts[kind] = self.counts.get(kind, 0) + count
        listed = self.first.setdefault(kind, [])
        listed += islice(first, FIRST - len(listed))

    def update(self, other: Findings) -> None:
        for kind, count in other.counts.items():
            self.add_many(kind, count, other.first.get(kind, ()))

    def without(self, kinds: Collection[str]) -> Findings:
        """Return a copy without the given kinds."""
        made = Findings()
        for kind, count in self.counts.items():
            made.add_many(kind, 0 if kind in kinds else count, self.first[kind])
        return made

    def __iter__(self) -> Iterator[tuple[str, int, list[Finding]]]:
        """Yield each kind, its count and its first findings, in the order of :data:`KINDS`."""
        return ((kind, self.counts[kind], self.first.get(kind, [])) for kind in KINDS if kind in self.counts)

    def stopping(self, also: Sequence[str] = ()) -> list[str]:
        """Return error messages about problems that stop training: the first few of each kind, and counts.

        ``also`` lists additional kinds that stop training.
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
        """Return notes on problems that do not stop training, excluding the kinds in ``but``."""
        made = []
        for kind, count, first in self:
            outcome = KINDS[kind].outcome
            if outcome == "stops" or kind in but:
                continue
            done = {"dropped": " (dropped)", "clipped": " (clipped)"}.get(outcome, "")
            sentence = f"{KINDS[kind].counted(count)}{done}"
            made.append(sentence + (f"; first finding: {first[0]}" if first else ""))
        return made

    def as_json(self) -> dict[str, Any]:
        return {
            kind: {"count": count, "outcome": KINDS[kind].outcome, "first": [list(one) for one in first]}
            for kind, count, first in self
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Findings:
        made = cls()
        for kind, entry in value.items():
            made.add_many(kind, entry["count"], [Finding(*one) for one in entry["first"]])
        return made
