"""Darknet's text labels (YOLO data): one ``.txt`` of ``class x y w h`` lines per picture.

A split is found from a ``data.yaml`` or from folders (see :mod:`rankless.data.formats.darknet_layout`). All
labels are read and checked once, when the data is opened, and every fault is told at once with its file and
line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.data import pictures
from rankless.data.formats.darknet_layout import find_split, label_path
from rankless.data.formats.faults import Fault, told
from rankless.errors import UserError
from rankless.types import Picture

SLACK = 0.01
"""A share may lie so far outside 0..1: sides are written with few digits."""


@dataclass(frozen=True)
class DarknetData:
    """One split, its labels flat in memory.

    Attributes:
        class_names: a label is a position in this list.
        paths: picture files, (N,).
        offsets: the boxes of picture i are ``offsets[i] : offsets[i + 1]``; int64, (N + 1,).
        boxes: float32, (total, 4): centre x, centre y, width, height as shares of the upright picture.
        labels: int64, (total,).
        notes: what was clipped, missing or left out, as sentences with counts.
    """

    class_names: tuple[str, ...]
    paths: list[str]
    offsets: NDArray[np.int64]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.paths)

    def source(self, index: int) -> str:
        """The file of picture ``index``."""
        return self.paths[index]

    def picture(self, index: int) -> Picture:
        """Picture ``index`` decoded, with its boxes in pixels.

        Raises:
            UnreadablePicture: the file is missing or damaged.
        """
        image = pictures.read(self.paths[index])
        return Picture(image, *self._truth(index, image.shape[1], image.shape[2]))

    def ground_truth(self, index: int) -> tuple[Tensor, Tensor, int, int]:
        """Boxes xyxy in pixels, labels, height and width of picture ``index``, from its header."""
        height, width = pictures.size(self.paths[index])
        return *self._truth(index, height, width), height, width

    def _truth(self, index: int, height: int, width: int) -> tuple[Tensor, Tensor]:
        run = slice(self.offsets[index], self.offsets[index + 1])
        centre, side = self.boxes[run, :2].astype(np.float64), self.boxes[run, 2:].astype(np.float64)
        corners = np.concatenate((centre - side / 2, centre + side / 2), 1).clip(0, 1)  # (n, 4)
        xyxy = corners * np.array([width, height, width, height])
        return torch.from_numpy(xyxy.astype(np.float32)), torch.from_numpy(self.labels[run].copy())


@dataclass
class _Lines:
    """Label lines of all pictures while they are read, and what is wrong with them."""

    values: list[list[float]] = field(default_factory=list)  # (total, 5)
    places: list[tuple[int, int]] = field(default_factory=list)  # file number, line number
    faults: list[tuple[int, int, str, str]] = field(default_factory=list)  # file, line, kind, sentence

    def fault(self, file: int, line: int, kind: str, found: str) -> None:
        self.faults.append((file, line, kind, found))


def read_darknet(root: str, split: str) -> DarknetData:
    """One split of a Darknet/YOLO data set.

    Args:
        root: a ``data.yaml`` or a folder.
        split: the split's name, as ``train`` or ``val``.

    Raises:
        UserError: nothing there, no such split, no picture, no label file at all, or faulty label lines: all
            of them together, the first 20 in full and the others counted by kind.
    """
    found = find_split(root, split)
    files = [label_path(path) for path in found.paths]
    lines, counts = _Lines(), np.zeros(len(files), np.int64)
    missing: list[str] = []
    for number, file in enumerate(files):
        before = len(lines.values)
        try:
            content = Path(file).read_bytes()
        except FileNotFoundError:
            missing.append(file)
            continue
        except OSError as error:
            lines.fault(number, 0, "unreadable", f"{error.strerror or error}, expected a text file")
            continue
        _parse(content, number, lines)
        counts[number] = len(lines.values) - before
    if len(missing) == len(files):
        raise UserError(
            f"Not one of the {len(files)} pictures of the split '{split}' in {root} has a label file; the "
            f"first would be {missing[0]}. Labels belong in a folder 'labels' that mirrors 'images', or "
            "beside the pictures where no folder is called 'images'."
        )
    values = np.array(lines.values, np.float64).reshape(-1, 5)
    clipped, notes = _check(values, lines, found.class_names)
    if lines.faults:
        raise UserError(_told(files, lines.faults))
    if missing:
        count = f"{len(missing)} of {len(files)} pictures"
        notes.append(f"{count} have no label file and count as empty; the first: {missing[0]}")
    offsets = np.concatenate(([0], np.cumsum(counts)))
    labels = values[:, 0].astype(np.int64)
    return DarknetData(found.class_names, found.paths, offsets, clipped, labels, [*found.notes, *notes])


def _parse(content: bytes, file: int, lines: _Lines) -> None:
    """Adds one label file's lines; what is not five numbers becomes a fault."""
    text = content.removeprefix(b"\xef\xbb\xbf")
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        lines.fault(file, 1, "encoding", "UTF-16 text, expected UTF-8")
        return
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 5:
            hint = " (polygons are not read)" if len(words) > 6 and len(words) % 2 else ""
            found = f"{len(words)} columns, expected 5: class x y width height{hint}"
            lines.fault(file, number, "wrong number of columns", found)
            continue
        try:
            row = [float(word) for word in words]
        except ValueError:
            shown = line.decode("utf-8", "replace").strip()
            lines.fault(file, number, "not a number", f"'{shown}', expected numbers: class x y width height")
            continue
        lines.values.append(row)
        lines.places.append((file, number))


def _check(
    values: NDArray[np.float64], lines: _Lines, class_names: Sequence[str]
) -> tuple[NDArray[np.float32], list[str]]:
    """Adds a fault for every bad row of (total, 5); returns boxes (total, 4) clipped to 0..1, and notes."""
    label, box = values[:, 0], values[:, 1:]
    finite = np.isfinite(values).all(1)
    with np.errstate(invalid="ignore"):
        low, high = box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2
        last = len(class_names) - 1
        rules = [
            ("not finite", ~finite, "all five finite"),
            ("class not a whole number", finite & (label != np.floor(label)), "a whole number as class"),
            ("class out of range", finite & ((label < 0) | (label > last)), f"a class from 0 to {last}"),
            ("size not positive", finite & (box[:, 2:] <= 0).any(1), "a width and height above 0"),
            (
                "not shares of the picture",
                finite & ((box > 1 + SLACK).any(1) | (box[:, :2] < -SLACK).any(1)),
                "x y width height between 0 and 1, as shares of the picture (not pixels)",
            ),
            (
                "box outside the picture",
                finite & ((high <= 0) | (low >= 1)).any(1),
                "a box inside the picture",
            ),
        ]
    taken = np.zeros(len(values), bool)  # a row is told once, by the first rule it breaks
    for kind, broken, expected in rules:
        for row in np.flatnonzero(broken & ~taken):
            shown = " ".join(f"{value:g}" for value in values[row])
            lines.fault(*lines.places[row], kind, f"'{shown}', expected {expected}")
        taken |= broken
    notes = _clip_notes(np.maximum(-low, high - 1).max(1))
    low, high = low.clip(0, 1), high.clip(0, 1)
    return np.concatenate(((low + high) / 2, high - low), 1).astype(np.float32), notes


def _clip_notes(beyond: NDArray[np.float64]) -> list[str]:
    """Says how many boxes reach outside, from how far each does, as a share of the side, (total,)."""
    hair = 1e-5  # six decimals in the file: below this nothing was cut
    little, much = int(((beyond > hair) & (beyond <= SLACK)).sum()), int((beyond > SLACK).sum())
    return [
        f"{count} of {len(beyond)} boxes reached {by} than 1 % of the side over the edge and were clipped"
        for count, by in ((little, "less"), (much, "more"))
        if count
    ]


def _told(files: Sequence[str], faults: list[tuple[int, int, str, str]]) -> list[str]:
    """The faults as sentences in the order of files and lines."""
    placed = [Fault(f"{files[file]}:{line}", kind, found) for file, line, kind, found in sorted(faults)]
    return told(placed, f"{len(faults)} label lines are faulty: mend them, or take them out.")
