"""What every format's reader gives, and the one place where it is judged and becomes :class:`Annotations`.

A reader only finds images and parses; whether a box lies in its image, has a size or repeats another is
the same question for every format and is asked here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankless.data.images import image_file
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations, flat_paths
from rankless.data.index.findings import FIRST, Finding, Findings

PIXELS = 2.0
"""A corner beyond so many sides of its image is no share, but a number of pixels."""
HAIR = 1e-5
"""A box that reaches over the edge by a smaller share of the side was only rounded."""


@dataclass
class Raw:
    """One split, or a part of one, as its files say.

    Attributes:
        paths: image files, (N,).
        sizes: height and width of each upright image from its header; 0, 0 where it cannot be read (which
            the reader has added to ``findings``); int32, (N, 2).
        stated: height and width that the annotation states; 0, 0 where it does not; int32, (N, 2).
        places: where the annotation of each image stands: its label file, or the one file of all; (N,).
        image: the number of the image that each box belongs to, int64, (T,).
        boxes: float64 xyxy, (T, 4), in pixels on the continuous plane, where the first pixel reaches from 0
            to 1; or in shares of the image. None: a class for each image, and ``labels`` is (N,).
        labels: positions in ``names``, or whatever number stands there; int64, (T,).
        flags, areas: as in :class:`Annotations`, (T,).
        lines: line of each box in its file, or its number as what ``counted`` says, for reports; int64, (T,).
        names: class names.
        counted: what ``lines`` counts: ``line``, or what the format has in its place, such as ``object``.
        shares: whether boxes are shares of the image.
        from_one: whether the format counts pixels from 1.
        spans: offset and length of each image in a tar shard, (N, 2), or None.
        depends: every file and folder whose change makes this out of date: folders that were listed, lists,
            label files; images themselves are not among them.
        findings: what the reader found wrong.
        about: sentences on how the data was read.
    """

    paths: list[str]
    sizes: NDArray[np.int32]
    stated: NDArray[np.int32]
    places: Sequence[str]
    image: NDArray[np.int64]
    boxes: NDArray[np.float64] | None
    labels: NDArray[np.int64]
    flags: NDArray[np.uint8]
    areas: NDArray[np.float32]
    lines: NDArray[np.int64]
    names: Sequence[str] = ()
    counted: str = "line"
    shares: bool = False
    from_one: bool = False
    spans: NDArray[np.int64] | None = None
    depends: list[str] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    about: list[str] = field(default_factory=list)


def settle(raw: Raw, format: str) -> Annotations:
    """Judge every box, and keep those that can be trained on.

    What stops a training is among the findings, too; the rows it concerns are left out of the result.

    Args:
        raw: the whole split.
        format: the format's name.
    """
    findings = Findings()
    findings.update(raw.findings)
    _judge_sizes(raw, findings)
    if raw.boxes is None:
        offsets, none = np.arange(len(raw.paths) + 1), np.zeros((0, 4), np.float32)
        return _made(raw, format, findings, offsets, none, slice(None))
    boxes = raw.boxes
    height, width = raw.sizes.astype(np.float64)[raw.image].T if len(boxes) else np.zeros((2, 0))
    sides = np.stack((width, height, width, height), 1)  # (T, 4)
    judged = _Judged(raw, findings)
    with np.errstate(invalid="ignore", over="ignore"):
        judged.drop("not finite", ~np.isfinite(boxes).all(1), "four finite numbers")
        last = len(raw.names) - 1
        expected = f"a class from 0 to {last}"
        judged.drop("class out of range", (raw.labels < 0) | (raw.labels > last), expected)
        if raw.shares:
            judged.drop("not shares", (np.abs(boxes) > PIXELS).any(1), "shares between 0 and 1, not pixels")
        judged.drop("ends before it begins", (boxes[:, 2:] < boxes[:, :2]).any(1))
        judged.drop("no size", (boxes[:, 2:] <= boxes[:, :2]).any(1))
        if raw.shares:
            boxes = boxes * sides
        known = (sides > 0).all(1)  # of an unreadable image the size is not known, and it is not shown
        inside = boxes.clip(0, sides)
        # What is kept is float32, so it is that which must have a size and differ. + 0 turns -0 into 0.
        clipped = (inside + 0).astype(np.float32)
        judged.drop("outside", known & (inside[:, 2:] <= inside[:, :2]).any(1), "a box inside")
        judged.drop("no size", known & (clipped[:, 2:] <= clipped[:, :2]).any(1))
        judged.drop("repeated", ~_first_of_equals(raw, clipped, judged.good & known) & known)
        beyond = (np.abs(boxes - inside) > HAIR * sides).any(1) & known
        if raw.from_one:
            from_zero = (boxes[:, :2] < 0).any(1) & (boxes[:, :2] >= -1).all(1)
            only = from_zero & ~(boxes[:, 2:] > inside[:, 2:]).any(1)
            judged.tell("counted from 0", only)
            beyond &= ~only
        judged.tell("over the edge", beyond)
        judged.tell("a pixel thin", known & ((clipped[:, 2:] - clipped[:, :2]) <= 1).any(1))
    judged.tell("difficult", (raw.flags & DIFFICULT) > 0)
    judged.tell("crowd", (raw.flags & CROWD) > 0)
    judged.good &= known
    counts = np.bincount(raw.image[judged.good], minlength=len(raw.paths))
    offsets = np.concatenate(([0], np.cumsum(counts)))
    order = np.flatnonzero(judged.good)
    order = order[np.argsort(raw.image[order], kind="stable")]
    return _made(raw, format, findings, offsets, clipped[order], order)


def _judge_sizes(raw: Raw, findings: Findings) -> None:
    """Tell the images whose annotation states another size."""
    compared = (raw.sizes > 0).all(1) & (raw.stated > 0).all(1)
    other = compared & (raw.sizes != raw.stated).any(1)
    swapped = other & (raw.sizes == raw.stated[:, ::-1]).all(1)
    turned = np.array(
        [row for row in np.flatnonzero(swapped) if image_file.sideways(raw.paths[row])], np.int64
    )
    other[turned] = False
    for kind, rows in (("other size", np.flatnonzero(other)), ("sideways", turned)):
        sizes = zip(raw.sizes[rows[:FIRST]].tolist(), raw.stated[rows[:FIRST]].tolist(), strict=True)
        told = (
            Finding(raw.paths[row], f"{found[1]} × {found[0]}, its annotation says {said[1]} × {said[0]}")
            for row, (found, said) in zip(rows.tolist(), sizes, strict=False)
        )
        findings.add_many(kind, len(rows), told)


def _made(
    raw: Raw,
    format: str,
    findings: Findings,
    offsets: NDArray[np.int64],
    boxes: NDArray[np.float32],
    order: NDArray[np.int64] | slice,
) -> Annotations:
    path_bytes, path_ends = flat_paths(raw.paths)
    return Annotations(
        class_names=tuple(raw.names),
        format=format,
        path_bytes=path_bytes,
        path_ends=path_ends,
        spans=np.zeros((0, 2), np.int64) if raw.spans is None else raw.spans.astype(np.int64),
        sizes=raw.sizes.astype(np.int32),
        offsets=offsets.astype(np.int64),
        boxes=boxes.reshape(-1, 4),
        labels=raw.labels[order].astype(np.int32),
        flags=raw.flags[order].astype(np.uint8),
        areas=raw.areas[order].astype(np.float32),
        findings=findings,
        about=tuple(raw.about),
    )


Flags = Any  # NumPy's types of comparisons are too many to name: bool, (T,)


class _Judged:
    """Which boxes are still good, and what is said of the others. A box is told once, by its first fault."""

    def __init__(self, raw: Raw, findings: Findings) -> None:
        self.raw, self.findings = raw, findings
        self.good = np.ones(len(raw.labels), bool)

    def drop(self, kind: str, broken: Flags, expected: str = "") -> None:
        self.tell(kind, broken, expected)
        self.good &= ~broken

    def tell(self, kind: str, which: Flags, expected: str = "") -> None:
        rows = np.flatnonzero(which & self.good)
        self.findings.add_many(kind, len(rows), self._told(rows[:FIRST], expected))

    def _told(self, rows: NDArray[np.int64], expected: str) -> Iterator[Finding]:
        raw = self.raw
        for row in rows.tolist():
            number = int(raw.image[row])
            place = raw.places[number] or raw.paths[number]
            label = int(raw.labels[row])
            name = f"'{raw.names[label]}'" if 0 <= label < len(raw.names) else f"class {label}"
            numbers = " ".join(f"{value:.6g}" for value in self._as_written(row))
            found = f"{name} at {numbers}" + (f", expected {expected}" if expected else "")
            line = raw.lines[row]
            yield Finding(
                f"{place}:{line}" if raw.counted == "line" else f"{place}: {raw.counted} {line}", found
            )

    def _as_written(self, row: int) -> Any:
        """A box in the terms of its format, so that it can be searched for in the file."""
        if self.raw.boxes is None:
            return ()
        box = self.raw.boxes[row]
        if self.raw.shares:
            return (*((box[:2] + box[2:]) / 2), *(box[2:] - box[:2]))
        return box + np.array([1, 1, 0, 0]) if self.raw.from_one else box


def _first_of_equals(raw: Raw, boxes: NDArray[np.float32], among: Flags) -> Flags:
    """Whether each box is the first of its image, class and place."""
    rows = np.flatnonzero(among)
    keys = np.column_stack((raw.image[rows], raw.labels[rows], boxes[rows]))
    first = np.zeros(len(boxes), bool)
    first[rows] = True
    likely = np.flatnonzero(_share_hash(keys))  # sorting whole rows takes ten times as long
    first[rows[likely]] = False
    first[rows[likely[np.unique(keys[likely], axis=0, return_index=True)[1]]]] = True
    return first


def _share_hash(keys: NDArray[Any]) -> Flags:
    """Whether each row's hash is another's, too; so it is of equal rows, and of hardly any others."""
    hashes = np.zeros(len(keys), np.uint64)
    for column in keys.T:
        hashes ^= (column + 0.0).view(np.uint64)  # + 0 turns -0 into 0, which is equal
        hashes *= np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: spreads the bits
        hashes ^= hashes >> np.uint64(32)
    ordered = np.sort(hashes)
    return np.isin(hashes, ordered[1:][ordered[1:] == ordered[:-1]])


def joined(parts: Sequence[Raw]) -> Raw:
    """Parts of one split, scanned one by one, as a whole; they have the same names or names of their own.

    Where the parts' names differ, the whole has all of them, sorted.
    """
    first = parts[0]
    alike = all(part.names == first.names for part in parts)
    names = first.names if alike else sorted({name for part in parts for name in part.names})
    places = {name: number for number, name in enumerate(names)}
    counts = np.cumsum([0, *(len(part.paths) for part in parts)])
    findings = Findings()
    for part in parts:
        findings.update(part.findings)
    labels = [
        part.labels
        if alike or not len(part.labels)
        else np.array([places[name] for name in part.names], np.int64)[part.labels]
        for part in parts
    ]
    return Raw(
        paths=[path for part in parts for path in part.paths],
        sizes=np.concatenate([part.sizes for part in parts]),
        stated=np.concatenate([part.stated for part in parts]),
        places=[place for part in parts for place in part.places],
        image=np.concatenate([part.image + start for part, start in zip(parts, counts[:-1], strict=True)]),
        boxes=None
        if first.boxes is None
        else np.concatenate([p.boxes for p in parts if p.boxes is not None]),
        labels=np.concatenate(labels),
        flags=np.concatenate([part.flags for part in parts]),
        areas=np.concatenate([part.areas for part in parts]),
        lines=np.concatenate([part.lines for part in parts]),
        names=names,
        counted=first.counted,
        shares=first.shares,
        from_one=first.from_one,
        spans=None
        if first.spans is None
        else np.concatenate([p.spans for p in parts if p.spans is not None]),
        depends=[path for part in parts for path in part.depends],
        findings=findings,
        about=[sentence for part in parts for sentence in part.about],
    )
