"""Indexing shards: where every image lies, how large it is, and what its label says."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rankless.data.formats.shard_labels import Boxes, LabelError, boxes_of, class_of, is_number
from rankless.data.formats.shard_members import Member, Sample, samples
from rankless.data.images import image_file
from rankless.data.index.byte_ranges import Window, path_in
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw
from rankless.errors import printable
from rankless.files import reading

MOST_CLASSES = 1_000_000
"""A class without a name cannot have a larger number: it would be no class, but something misread."""


def index(items: list[tuple[str, ...]]) -> Raw:
    """The samples of some shards.

    Args:
        items: (shard, kind of its labels, JSON of the class names or of None). Without names the result's
            are the classes found, numbers and names as text.
    """
    names = json.loads(items[0][2])
    part = _Part(kind=items[0][1], names=names, numbers={name: at for at, name in enumerate(names or ())})
    for shard, *_ in items:
        part.add_shard(shard)
    return part.raw()


@dataclass
class _Part:
    """What was found so far."""

    kind: str
    names: Sequence[str] | None
    numbers: dict[str, int]  # of classes; grows where there are no names
    paths: list[str] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    stated: list[tuple[int, int]] = field(default_factory=list)
    image: list[int] = field(default_factory=list)
    boxes: list[list[float]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    areas: list[float] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    def add_shard(self, shard: str) -> None:
        """Index one more."""
        try:
            opened = reading.opened(shard)
        except OSError as error:
            self.findings.add("unreadable file", shard, error.strerror or str(error))
            return
        with opened:
            for sample in samples(shard, self.findings):
                self._add(sample, shard, opened.fileno())

    def _add(self, sample: Sample, shard: str, file: int) -> None:
        label = sample.members.get(self.kind)
        if sample.image is None:
            kind = "label without image" if label else "left out"
            self.findings.add(kind, path_in(shard, sample.key), "" if label else "neither image nor label")
            return
        path = path_in(shard, sample.image.name)
        try:
            content = _label(file, label) if label else None
            found = self._understood(content, path)
        except LabelError as error:
            self.findings.add("not understood", path_in(shard, label.name) if label else path, str(error))
            return
        numbers = [self._number(each, path) for each in found.labels] if found else []
        if found is None or (self.kind == "cls" and numbers == [None]):
            return
        self._add_rows(found, numbers)
        self.paths.append(path)
        self.spans.append((sample.image.offset, sample.image.length))
        self.sizes.append(self._size(file, sample.image, path))
        self.stated.append(found.stated)

    def _understood(self, content: bytes | None, path: str) -> Boxes | None:
        """What the label says, of a class with a box that says nothing; None if there is to be one."""
        if content is None:
            self.findings.add("no class" if self.kind == "cls" else "no label file", path)
            return None if self.kind == "cls" else Boxes()
        if self.kind != "cls":
            return boxes_of(content, self.kind)
        found = Boxes()
        found.add([0.0] * 4, class_of(content))
        return found

    def _number(self, label: str, place: str) -> int | None:
        """The number of a class; None, and a finding, if it has none."""
        most = MOST_CLASSES if self.names is None else len(self.names)
        if is_number(label):
            if not 0 <= int(label) < most:
                self.findings.add(
                    "class out of range", place, f"{printable(label)}, expected 0 to {most - 1}"
                )
                return None
            if self.names is not None:
                return int(label)
        if self.names is None:
            return self.numbers.setdefault(label, len(self.numbers))
        if label not in self.numbers:
            self.findings.add("unnamed class", place, f"'{printable(label)}', which is no class name")
        return self.numbers.get(label)

    def _add_rows(self, found: Boxes, numbers: Sequence[int | None]) -> None:
        rows = [row for row, number in enumerate(numbers) if number is not None]
        self.image += [len(self.paths)] * len(rows)
        self.boxes += [found.boxes[row] for row in rows]
        self.labels += [number for number in numbers if number is not None]
        self.flags += [found.flags[row] for row in rows]
        self.areas += [found.areas[row] for row in rows]
        self.lines += [row + 1 for row in rows]

    def _size(self, file: int, image: Member, path: str) -> tuple[int, int]:
        try:
            return image_file.size(io.BufferedReader(Window(file, image.offset, image.length)), name=path)
        except image_file.UnreadableImage as error:
            self.findings.add("unreadable image", path, error.reason)
            return 0, 0

    def raw(self) -> Raw:
        """All of it; classes without given names are numbered in the order of their names."""
        names = list(self.names) if self.names is not None else sorted(self.numbers)
        labels = np.array(self.labels, np.int64)
        if self.names is None:
            places = {name: number for number, name in enumerate(names)}
            labels = np.array([places[name] for name in self.numbers], np.int64)[labels]
        boxes = np.array(self.boxes, np.float64).reshape(-1, 4)
        return Raw(
            paths=self.paths,
            sizes=np.array(self.sizes, np.int32).reshape(-1, 2),
            stated=np.array(self.stated, np.int32).reshape(-1, 2),
            places=self.paths,
            image=np.array(self.image, np.int64),
            boxes=None if self.kind == "cls" else boxes,
            labels=labels,
            flags=np.array(self.flags, np.uint8),
            areas=np.array(self.areas, np.float32),
            lines=np.array(self.lines, np.int64),
            counted="box",
            names=names,
            shares=self.kind == "txt",
            spans=np.array(self.spans, np.int64).reshape(-1, 2),
            findings=self.findings,
        )


def _label(file: int, label: Member) -> bytes:
    if label.length > reading.LABELS:
        raise LabelError(
            f"it has {label.length:,} bytes, more than the {reading.LABELS:,} that a label may have"
        )
    return os.pread(file, label.length, label.offset)
