"""Check that the boxes of any format are inside their images, have an area and are not repeated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankless.data.images import image_file
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations, flat_paths
from rankless.data.index.box_forms import settle
from rankless.data.index.findings import FIRST, Finding, Findings
from rankless.data.index.raw import Raw

PIXELS = 2.0  # Maximum plausible normalized coordinate. A larger number must be in pixels.
HAIR = 1e-5  # maximum fraction of the image's side by which rounding may move a box beyond the image
Mask = Any  # bool, (T,); the types of NumPy's comparison results vary


def validate(raw: Raw, format: str, form: str = "") -> Annotations:
    """Build :class:`Annotations` from the valid boxes of ``raw``, with findings about all problems.

    ``form`` is the form of the boxes if the user has given it; see :mod:`rankless.data.index.box_forms`.
    """
    settle(raw, format, form)
    findings = Findings()
    findings.update(raw.findings)
    _compare_sizes(raw, findings)
    if raw.boxes is None:
        offsets, none = np.arange(len(raw.paths) + 1), np.zeros((0, 4), np.float32)
        return _annotations(raw, format, findings, offsets, none, slice(None))
    boxes = raw.boxes
    height, width = raw.sizes.astype(np.float64)[raw.image].T if len(boxes) else np.zeros((2, 0))
    sides = np.stack((width, height, width, height), 1)  # (T, 4)
    checked = _Checked(raw, boxes, findings)
    with np.errstate(invalid="ignore", over="ignore"):
        checked.drop("not finite", ~np.isfinite(boxes).all(1), "four finite numbers")
        last = len(raw.names) - 1
        expected = f"a class from 0 to {last}"
        checked.drop("class out of range", (raw.labels < 0) | (raw.labels > last), expected)
        if raw.normalized:
            checked.drop("not normalized", (np.abs(boxes) > PIXELS).any(1), "numbers from 0 to 1, not pixels")
        checked.drop("ends before it begins", (boxes[:, 2:] < boxes[:, :2]).any(1))
        checked.drop("no size", (boxes[:, 2:] <= boxes[:, :2]).any(1))
        if raw.normalized:
            boxes = boxes * sides
        known = (sides > 0).all(1)  # the size of an unreadable image is unknown
        inside = boxes.clip(0, sides)
        # Sizes and duplicates are checked in float32, as in the result. Adding 0 turns -0 into 0.
        clipped = (inside + 0).astype(np.float32)
        checked.drop("outside", known & (inside[:, 2:] <= inside[:, :2]).any(1), "a box inside the image")
        checked.drop("no size", known & (clipped[:, 2:] <= clipped[:, :2]).any(1))
        checked.drop("repeated", ~_first_of_equals(raw, clipped, checked.good & known) & known)
        beyond = known & (np.abs(boxes - inside) > HAIR * sides).any(1)
        if raw.one_based:
            from_zero = (boxes[:, :2] < 0).any(1) & (boxes[:, :2] >= -1).all(1)
            only = from_zero & ~(boxes[:, 2:] > inside[:, 2:]).any(1)
            checked.report("counted from 0", only)
            beyond &= ~only
        checked.report("over the edge", beyond)
        checked.report("a pixel thin", known & ((clipped[:, 2:] - clipped[:, :2]) <= 1).any(1))
    checked.report("difficult", (raw.flags & DIFFICULT) > 0)
    checked.report("crowd", (raw.flags & CROWD) > 0)
    checked.good &= known
    counts = np.bincount(raw.image[checked.good], minlength=len(raw.paths))
    offsets = np.concatenate(([0], np.cumsum(counts)))
    order = np.flatnonzero(checked.good)
    order = order[np.argsort(raw.image[order], kind="stable")]
    return _annotations(raw, format, findings, offsets, clipped[order], order)


def _compare_sizes(raw: Raw, findings: Findings) -> None:
    none = np.flatnonzero((raw.sizes > 0).all(1) & (raw.stated < 0).any(1)).tolist()
    real = ((row, *raw.sizes[row].tolist()) for row in none)
    first = (Finding(raw.annotated_in[row], f"{raw.paths[row]} is {w} × {h}") for row, h, w in real)
    findings.add_many("no stated size", len(none), first)
    compared = (raw.sizes > 0).all(1) & (raw.stated > 0).all(1)
    other = compared & (raw.sizes != raw.stated).any(1)
    swapped = other & (raw.sizes == raw.stated[:, ::-1]).all(1)
    turned = np.array(
        [row for row in np.flatnonzero(swapped) if image_file.sideways(raw.paths[row])], np.int64
    )
    other[turned] = False
    for kind, rows in (("other size", np.flatnonzero(other)), ("sideways", turned)):
        sizes = zip(raw.sizes[rows[:FIRST]].tolist(), raw.stated[rows[:FIRST]].tolist(), strict=True)
        first = (
            Finding(raw.paths[row], f"{real[1]} × {real[0]}, annotated as {stated[1]} × {stated[0]}")
            for row, (real, stated) in zip(rows.tolist(), sizes, strict=False)
        )
        findings.add_many(kind, len(rows), first)


def _annotations(
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
        byte_ranges=np.zeros((0, 2), np.int64)
        if raw.byte_ranges is None
        else raw.byte_ranges.astype(np.int64),
        sizes=raw.sizes.astype(np.int32),
        offsets=offsets.astype(np.int64),
        boxes=boxes.reshape(-1, 4),
        labels=raw.labels[order].astype(np.int32),
        flags=raw.flags[order].astype(np.uint8),
        areas=raw.areas[order].astype(np.float32),
        findings=findings,
        about=tuple(raw.about),
    )


class _Checked:
    """The boxes that have passed all checks so far. Only the first problem of a box is reported."""

    def __init__(self, raw: Raw, boxes: NDArray[np.float64], findings: Findings) -> None:
        self.raw, self.boxes, self.findings = raw, boxes, findings
        self.good = np.ones(len(raw.labels), bool)

    def drop(self, kind: str, broken: Mask, expected: str = "") -> None:
        self.report(kind, broken, expected)
        self.good &= ~broken

    def report(self, kind: str, which: Mask, expected: str = "") -> None:
        rows = np.flatnonzero(which & self.good)
        self.findings.add_many(kind, len(rows), self._shown(rows[:FIRST], expected))

    def _shown(self, rows: NDArray[np.int64], expected: str) -> Iterator[Finding]:
        raw = self.raw
        for row in rows.tolist():
            number = int(raw.image[row])
            file = raw.annotated_in[number] or raw.paths[number]
            label = int(raw.labels[row])
            name = f"'{raw.names[label]}'" if 0 <= label < len(raw.names) else f"class {label}"
            box = self.boxes[row] + (np.array([1, 1, 0, 0]) if raw.one_based else 0)
            # A box is shown with the coordinates of its format, so that users can find it in the file.
            written: Any = (*((box[:2] + box[2:]) / 2), *(box[2:] - box[:2])) if raw.normalized else box
            numbers = " ".join(f"{value:.6g}" for value in written)
            problem = f"{name} at {numbers}" + (f"; expected {expected}" if expected else "")
            line = f":{raw.lines[row]}" if raw.counted == "line" else f": {raw.counted} {raw.lines[row]}"
            yield Finding(f"{file}{line}", problem)


def _first_of_equals(raw: Raw, boxes: NDArray[np.float32], among: Mask) -> Mask:
    """Return a mask of the boxes that do not repeat an earlier box with the same image and class."""
    rows = np.flatnonzero(among)
    labels = raw.image[rows] * len(raw.names) + raw.labels[rows]
    corners = (boxes[rows] + 0).view(np.uint64)  # two numbers each; adding 0 turns -0 into 0
    keys = np.column_stack((corners, labels.astype(np.uint64))).T
    order = np.lexsort(keys)
    repeats = (keys[:, order[1:]] == keys[:, order[:-1]]).all(0)
    first = among.copy()
    first[rows[order[1:][repeats]]] = False
    return first
