"""Tar shards in the conventions of the package webdataset.

``train-000000.tar`` holds images, and beside each its label: ``0001.jpg`` and ``0001.cls`` (the number or
name of its class), or ``0001.json`` or ``0001.txt`` (its boxes). Shards are indexed once; then every image
is read alone, by its byte range in its shard, so the order of training is drawn as of any other data.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rankless.data.formats import packing, shards
from rankless.data.formats.shard_labels import LabelError, Row, class_of, is_number, rows_of
from rankless.data.formats.shards import KINDS, Member, Sample, samples
from rankless.data.formats.splits import how_to_divide
from rankless.data.formats.writing import ImageFiles
from rankless.data.images import image_file
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import Ranged, Window, opened, path_in
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw, RawBuilder
from rankless.data.index.scan import scan
from rankless.errors import UserError, counted, listed, printable
from rankless.files import reading
from rankless.files.remote import Location, RemotePath, name_of, size_of

TITLE = "tar shards (WebDataset)"
LAYOUT = "'train-000000.tar' and so on, or a folder of tar files per split, with images and '.cls' or '.json'"
MOST_CLASSES = 1_000_000
"""A class without a name cannot have a larger number: it would be no class, but something misread."""
_MUCH = 1024**3  # bytes; reading less at once takes no longer than to start other processes


def recognize(root: Location) -> str:
    """Why ``root`` holds shards; empty if not."""
    first = shards.looks_like_shards(root)
    return f"it has tar shards such as '{_below(first, root)}'" if first else ""


def splits(root: Location) -> list[str]:
    """The splits, by the names of shards or of folders of shards."""
    return list(shards.shards_of(root))


def read(root: Location, split: str, class_names: Sequence[str] | None = None) -> Raw:
    """Read one split: shards by name, in each the members' order.

    Args:
        root, split, class_names: see :class:`rankless.data.formats.registry.Format`.
    """
    by_split = shards.shards_of(root)
    split = shards.known_as(split, list(by_split))
    if split not in by_split:
        expected = f"{'one of ' * (len(by_split) > 1)}{listed(list(by_split))}" if by_split else LAYOUT
        divide = how_to_divide(root, split) if by_split and isinstance(root, Path) else ""
        raise UserError(f"{root}: no shards of a split '{split}'; expected {expected}{divide}")
    chosen = by_split[split]
    _refuse(root, split, chosen)
    names, names_file = shards.class_names(root, chosen)
    kind = _kind(chosen)
    raw = _scanned(chosen, kind, names)
    if not raw.paths:
        raise UserError([*map(str, _first(raw.findings)), f"{root}: the split '{split}' has no images"])
    others: list[list[Location]] = []
    if names is None:
        if kind != "cls":  # a class of an image has a name in every split; boxes need one numbering
            others = [each for name, each in by_split.items() if name != split]
            others = [each for each in others if not any(map(shards.is_compressed, each))]
        named = {name for each in others for name in _scanned(each, kind, None).names} | {*raw.names}
        raw.rename(_numbered(sorted(named)))
        if class_names and all(map(is_number, raw.names)) and not all(map(is_number, class_names)):
            raw.names = _given(root, class_names, len(raw.names))
    if isinstance(root, RemotePath):  # its fingerprint says whether it has changed
        return raw
    scanned = [shard for each in (chosen, *others) for shard in each]
    folders = dict.fromkeys(str(folder) for shard in scanned for folder in (root, shard.parent))
    raw.depends = [*folders, *([names_file] if names_file else []), *map(str, scanned)]
    return raw


def _numbered(names: list[str]) -> list[str]:
    """The names of classes that nothing names: a number is its name."""
    if all(map(is_number, names)):
        return [str(number) for number in range(max(map(int, names), default=-1) + 1)]
    return names


def _below(shard: Location, root: Location) -> str:
    return str(shard).removeprefix(f"{root}/")


def _given(root: Location, names: Sequence[str], count: int) -> list[str]:
    """Names for classes that are numbers, of which ``count`` are needed."""
    if len(names) < count:
        raise UserError(
            f"{root}: it has the class {count - 1}, but data.classes names {len(names)} classes; expected "
            f"{count} names or more, the first is of class 0"
        )
    return list(names)


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """See :func:`rankless.data.formats.packing.pack`; images are always copied."""
    packing.pack(splits, out)
    return []


def _refuse(root: Location, split: str, chosen: list[Location]) -> None:
    packed = [shard.name for shard in chosen if shards.is_compressed(shard)]
    if packed:
        raise UserError(
            f"{root}: {counted(len(packed), 'shard is', 'shards are')} compressed ({listed(packed)}), so no "
            "image can be read alone; decompress them: images are compressed already"
        )
    if len({shard.parent for shard in chosen}) > 1:
        raise UserError(
            f"{root}: the split '{split}' is both a folder of shards and shards by its name; "
            "expected one of the two; move the other away"
        )


def _kind(chosen: list[Location]) -> str:
    """How the split is labeled: as the first sample with a label is."""
    findings = Findings()
    for shard in chosen:
        for sample in samples(name_of(shard), findings):
            if sample.image and (here := [kind for kind in KINDS if kind in sample.members]):
                return here[0]
    raise UserError(
        [
            *map(str, _first(findings)),
            f"{chosen[0]}: no image with a label; expected members of one name such as '0001.jpg' and "
            "'0001.cls' (a class), or '0001.json' or '0001.txt' (boxes), one after another",
        ]
    )


def _first(findings: Findings) -> list[object]:
    return [one for _, _, first in findings for one in first[:3]]


def _scanned(chosen: list[Location], kind: str, names: list[str] | None) -> Raw:
    much = sum(map(size_of, chosen)) > _MUCH
    items = [(name_of(shard), kind, json.dumps(names)) for shard in chosen]
    # A chunk may be shorter than was asked for, so little is said not to be worth other processes as well.
    return scan(index, items, "shards", chunk=1 if much else len(items), processes=None if much else 1)


def index(items: list[tuple[str, ...]]) -> Raw:
    """Read the samples of some shards: the byte range of every image, its size, and what its label says.

    Args:
        items: (shard, kind of its labels, JSON of the class names or of None). Without names the result's
            are the classes found, numbers and names as text.
    """
    names = json.loads(items[0][2])
    part = _Part(kind=items[0][1], names=names, labels={name: at for at, name in enumerate(names or ())})
    for shard, *_ in items:
        part.add_shard(shard)
    return part.raw()


@dataclass
class _Part:
    """Some shards on their way to the flat form."""

    kind: str
    names: Sequence[str] | None
    labels: dict[str, int]  # of classes; grows where there are no names
    made: RawBuilder = field(default_factory=RawBuilder)
    byte_ranges: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)

    def add_shard(self, shard: str) -> None:
        """Index one more."""
        with ExitStack() as stack:
            try:
                ranges = stack.enter_context(opened(shard))
            except OSError as error:
                self.made.findings.add("unreadable file", shard, error.strerror or str(error))
                return
            for sample in samples(shard, self.made.findings):
                self._add(sample, shard, ranges)

    def _add(self, sample: Sample, shard: str, file: Ranged) -> None:
        label, findings = sample.members.get(self.kind), self.made.findings
        if sample.image is None:
            kind = "label without image" if label else "left out"
            findings.add(kind, path_in(shard, sample.key), "" if label else "neither image nor label")
            return
        path = path_in(shard, sample.image.name)
        rows, stated = list[Row](), (0, 0)
        try:
            if label is None:
                findings.add("no class" if self.kind == "cls" else "no label file", path)
            elif self.kind == "cls":
                rows = [Row([0.0] * 4, class_of(_content(file, label)))]
            else:
                rows, stated = rows_of(_content(file, label), self.kind)
        except LabelError as error:
            findings.add("not understood", path_in(shard, label.name) if label else path, str(error))
            return
        labels = [self._label(row.label, path) for row in rows]
        if self.kind == "cls" and labels in ([], [None]):
            return
        image = self.made.add_image(path, path, stated)
        for line, (row, number) in enumerate(zip(rows, labels, strict=True), 1):
            if number is not None:
                self.made.add_box(image, row.box, number, line, row.flags, row.area)
        self.byte_ranges.append((sample.image.offset, sample.image.length))
        self.sizes.append(self._size(file, sample.image, path))

    def _label(self, label: str, path: str) -> int | None:
        """The number of a class; None, and a finding, if it has none."""
        findings = self.made.findings
        most = MOST_CLASSES if self.names is None else len(self.names)
        if is_number(label):
            if not 0 <= int(label) < most:
                expected = f"{printable(label)}; expected 0 to {most - 1}"
                findings.add("class out of range", path, expected)
                return None
            if self.names is not None:
                return int(label)
        if self.names is None:
            return self.labels.setdefault(label, len(self.labels))
        if label not in self.labels:
            findings.add("unnamed class", path, f"'{printable(label)}'; expected one of the class names")
        return self.labels.get(label)

    def _size(self, file: Ranged, image: Member, path: str) -> tuple[int, int]:
        try:
            return image_file.size(io.BufferedReader(Window(file, image.offset, image.length)), name=path)
        except image_file.UnreadableImage as error:
            self.made.findings.add("unreadable image", path, error.reason)
            return 0, 0

    def raw(self) -> Raw:
        """Return all of it; classes without given names are numbered in the order of their names."""
        raw = self.made.raw(
            boxed=self.kind != "cls",
            counted="box",
            names=list(self.labels) if self.names is None else self.names,
            normalized=self.kind == "txt",
            byte_ranges=np.array(self.byte_ranges, np.int64).reshape(-1, 2),
            sizes=np.array(self.sizes, np.int32).reshape(-1, 2),
        )
        if self.names is None:
            raw.rename(sorted(self.labels))
        return raw


def _content(file: Ranged, label: Member) -> bytes:
    if label.length > reading.LABELS:
        raise LabelError(
            f"it has {label.length:,} bytes, more than the {reading.LABELS:,} that a label may have"
        )
    return file.pread(label.length, label.offset)
