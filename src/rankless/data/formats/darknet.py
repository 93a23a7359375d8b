"""Darknet's text labels (YOLO data): one ``.txt`` of ``class x y w h`` lines per image.

The class is counted from 0, the box is its center and size in shares of the upright image. A line of more
numbers is a polygon, as trainers of segmentation write it; its bounds are the box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rankless.data.formats.darknet_labels import paired
from rankless.data.formats.darknet_layout import LAYOUT, find_split, split_names, why_darknet
from rankless.data.formats.darknet_writing import write
from rankless.data.formats.splits import usual_order
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw
from rankless.data.index.scan import headers, scan
from rankless.errors import UserError, printable
from rankless.files import reading

__all__ = ["LAYOUT", "TITLE", "read", "recognize", "splits", "write"]

TITLE = "Darknet (YOLO)"


def recognize(root: Path) -> str:
    """Why ``root`` is Darknet's; empty if it is not."""
    return why_darknet(root)


def splits(root: Path) -> list[str]:
    """The splits that the description or the folders name."""
    return usual_order(split_names(root))


def read(root: Path, split: str) -> Raw:
    """One split.

    Raises:
        UserError: no such split, no image in it, or not one label file.
    """
    found = find_split(root, split)
    pairs = paired(found.paths)
    missing = sum(not label for _, label in pairs.items)
    if missing == len(pairs.items):
        raise UserError(
            f"Not one of the {missing} images of the split '{split}' in {root} has a label file; the first "
            f"would be {pairs.expected}. Labels belong in a folder 'labels' that mirrors 'images', or beside "
            "the images where no folder is called 'images'."
        )
    raw = scan(read_labels, pairs.items, "images")
    raw.names, raw.shares = found.class_names, True
    raw.depends = [*dict.fromkeys([*found.depends, *pairs.folders]), *raw.depends]
    raw.about = [*found.notes, *raw.about]
    findings = found.findings
    findings.update(pairs.findings)
    findings.update(raw.findings)
    raw.findings = findings
    return raw


@dataclass
class _Lines:
    """Label lines while they are read."""

    image: list[int] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    box: list[tuple[float, ...]] = field(default_factory=list)  # center and size
    outline: list[tuple[float, ...] | None] = field(default_factory=list)  # or corners, of a polygon
    findings: Findings = field(default_factory=Findings)


def read_labels(items: list[tuple[str, ...]]) -> Raw:
    """Parse the label files of some (image, label file or nothing) and read the images' headers."""
    lines = _Lines()
    for number, (image, label) in enumerate(items):
        if not label:
            lines.findings.add("no label file", image)
            continue
        try:
            content = reading.read_bytes(label, reading.LABELS)
        except OSError as error:
            lines.findings.add("unreadable file", label, f"{error.strerror or error}, expected a text file")
            continue
        if content.isspace() or not content:
            lines.findings.add("empty", image)
        _parse(content, number, label, lines)
    sizes, unreadable = headers([image for image, _ in items])
    lines.findings.update(unreadable)
    box = np.array(lines.box, np.float64).reshape(-1, 4)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is judged later
        corners = np.concatenate((box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2), 1)
    for row, outline in enumerate(lines.outline):
        if outline is not None:
            corners[row] = outline
    return Raw(
        paths=[image for image, _ in items],
        sizes=sizes,
        stated=np.zeros_like(sizes),
        places=[label for _, label in items],
        image=np.array(lines.image, np.int64),
        boxes=corners,
        labels=np.array(lines.label, np.int64),
        flags=np.zeros(len(box), np.uint8),
        areas=np.full(len(box), np.nan, np.float32),
        lines=np.array(lines.line, np.int64),
        shares=True,
        depends=[label for _, label in items if label],
        findings=lines.findings,
    )


def _parse(content: bytes, image: int, file: str, lines: _Lines) -> None:
    """Add one label file's lines."""
    text = content.removeprefix(b"\xef\xbb\xbf")
    if text.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in text[:100]:
        lines.findings.add("unreadable file", file, "UTF-16 text or no text, expected UTF-8")
        return
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        polygon = len(words) > 6 and len(words) % 2 == 1
        if len(words) != 5 and not polygon:
            found = f"{len(words)} columns, expected 5: class x y width height"
            lines.findings.add("not understood", f"{file}:{number}", found)
            continue
        try:
            if b"_" in line:  # Python would read 1_0 as 10
                raise ValueError
            label, *row = map(float, words)
            if not label.is_integer():
                raise ValueError
        except ValueError:
            shown = printable(line.decode("utf-8", "replace").strip())
            expected = "numbers: class x y width height, the class a whole one"
            lines.findings.add("not a number", f"{file}:{number}", f"'{shown}', expected {expected}")
            continue
        lines.image.append(image)
        lines.line.append(number)
        lines.label.append(int(max(-(2.0**31), min(2.0**31, label))))
        lines.box.append((0.0, 0.0, 0.0, 0.0) if polygon else tuple(row))
        lines.outline.append(_bounds(row) if polygon else None)
        if polygon:
            lines.findings.add("outline", f"{file}:{number}")


def _bounds(points: list[float]) -> tuple[float, ...]:
    """The box around x y x y …; not finite where a point is not."""
    if not all(map(math.isfinite, points)):
        return (math.nan,) * 4
    return min(points[::2]), min(points[1::2]), max(points[::2]), max(points[1::2])
