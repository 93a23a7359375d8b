"""Read and write tar shards that follow the conventions of the package webdataset.

``train-000000.tar`` contains each image with its label: ``0001.jpg`` with ``0001.cls`` (number or name of the
class), ``0001.json`` (boxes as JSON) or ``0001.txt`` (boxes as Darknet lines). Shards are indexed once.
Images are then read by their byte ranges, so training uses the same order as with other formats.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rankless.data.formats import packing, shards
from rankless.data.formats.shards import KINDS, Member, Sample, samples
from rankless.data.formats.splits import how_to_divide
from rankless.data.formats.writing import ImageFiles
from rankless.data.index.annotations import CROWD, Annotations
from rankless.data.index.byte_ranges import Ranged, Window, opened, path_in
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw, RawBuilder
from rankless.data.index.scan import scan, size
from rankless.errors import UserError, counted, listed, printable
from rankless.files import reading
from rankless.files.remote import Location, RemotePath, name_of, size_of


class LabelError(ValueError):
    """Raised for an invalid label; the message gives the value found and the value expected."""


class Row(NamedTuple):
    """One box of an image. Boxes are xyxy in pixels, or normalized by the image size in Darknet lines."""

    box: list[float]
    label: str
    flags: int = 0
    area: float = float("nan")


Rows = tuple[list[Row], tuple[int, int]]  # the boxes of an image, and its height and width; 0, 0 if unknown


def class_of(content: bytes) -> str:
    """Return the number or name of the class in a ``.cls`` member."""
    text = _text(content).strip()
    if not text or "\n" in text:
        raise LabelError(f"'{printable(text)}'; expected the number or name of a class")
    return _number_or_name(text)


def rows_of(content: bytes, kind: str) -> Rows:
    """Return the boxes and the image size in a ``.json`` or ``.txt`` member."""
    try:
        return _of_lines(_text(content)) if kind == "txt" else _of_json(json.loads(_text(content)))
    except LabelError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise LabelError(f"{printable(str(error))}; expected JSON or Darknet lines") from error


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LabelError(f"{content[:20]!r}; expected UTF-8") from error


def _of_lines(text: str) -> Rows:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        columns = line.split()
        if not columns:
            continue
        expected = "expected five columns: class x y width height"
        if len(columns) != 5:
            raise LabelError(f"line {number}: '{printable(line)}'; {expected}")
        try:
            x, y, w, h = map(float, columns[1:])
        except ValueError as error:
            raise LabelError(f"line {number}: '{printable(line)}'; {expected}") from error
        rows.append(Row([x - w / 2, y - h / 2, x + w / 2, y + h / 2], _number_or_name(columns[0])))
    return rows, (0, 0)


def _of_json(value: Any) -> Rows:
    if isinstance(value, list):
        value = {"annotations": value}
    if not isinstance(value, dict) or not ({"boxes", "annotations"} & set(value)):
        raise LabelError("no 'boxes' and no 'annotations'; expected one of these lists")
    stated = _side(value.get("height") or 0), _side(value.get("width") or 0)
    made: list[Row] = []
    if "boxes" in value:
        columns = [value["boxes"], value.get("labels")]
        if isinstance(columns[0], list):
            columns += [value.get(name) or [None] * len(columns[0]) for name in ("flags", "areas")]
        if not all(isinstance(each, list) for each in columns) or len(set(map(len, columns))) > 1:
            raise LabelError("'boxes', 'labels', 'flags' and 'areas' are not lists of the same length")
        rows = zip(*columns, strict=True)
        return [
            Row(_four(box), _label(label), _flag(flag), _area(area)) for box, label, flag, area in rows
        ], stated
    if not isinstance(value["annotations"], list):
        raise LabelError("'annotations' is not a list")
    for each in value["annotations"]:
        if not isinstance(each, dict):
            raise LabelError("an annotation is not an object; expected 'bbox' and 'category_id'")
        x, y, w, h = _four(each.get("bbox"))
        crowd = CROWD if each.get("iscrowd") else 0
        label, area = _label(each.get("category_id")), _area(each.get("area"))
        made.append(Row([x, y, x + w, y + h], label, crowd, area))
    return made, stated


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _four(box: Any) -> list[float]:
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        raise LabelError(f"a box is {printable(repr(box))}; expected four numbers")
    return [float(value) for value in box]


def _label(label: Any) -> str:
    if isinstance(label, bool) or not isinstance(label, int | str) or label == "":
        raise LabelError(f"a label is {printable(repr(label))}; expected the number or name of a class")
    return _number_or_name(str(label))


def _flag(flag: Any) -> int:
    if flag is not None and (isinstance(flag, bool) or flag not in (0, 1, 2, 3)):
        raise LabelError(f"a flag is {printable(repr(flag))}; expected 1 (difficult), 2 (crowd) or 3 (both)")
    return int(flag or 0)


def _area(area: Any) -> float:
    if area is not None and not _is_number(area):
        raise LabelError(f"an area is {printable(repr(area))}; expected a number of pixels")
    return float("nan") if area is None else float(area)


def _side(side: Any) -> int:
    if not isinstance(side, int) or isinstance(side, bool) or not 0 <= side < 2**31:
        raise LabelError(f"the height or width is {printable(repr(side))}; expected a number of pixels")
    return side


def _number_or_name(text: str) -> str:
    """Normalize class numbers, so that ``007`` and ``7`` are the same class; return names unchanged."""
    return str(int(text)) if is_number(text) else text


def is_number(text: str) -> bool:
    """Return whether a text is a class number, not a class name."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 19


TITLE = "tar shards (WebDataset)"
LAYOUT = (
    "'train-000000.tar' and so on, or one folder of tar files per split, with images and '.cls' or '.json'"
)
MOST_CLASSES = 1_000_000
"""Limit on class numbers in data without class names. A larger number indicates a misread file."""
_MUCH = 1024**3  # number of bytes that justify starting processes


def recognize(root: Location) -> str:
    first = shards.looks_like_shards(root)
    return f"it has tar shards such as '{str(first).removeprefix(f'{root}/')}'" if first else ""


def splits(root: Location) -> list[str]:
    return list(shards.shards_of(root))


def read(root: Location, split: str, class_names: Sequence[str] | None = None) -> Raw:
    """Read one split in the order of shard names and members."""
    by_split = shards.shards_of(root)
    split = shards.known_as(split, list(by_split))
    if split not in by_split:
        expected = LAYOUT
        if by_split:
            expected = f"{'one of ' * (len(by_split) > 1)}{listed(list(by_split))}; choose an existing split"
        divide = how_to_divide(root, split) if by_split and isinstance(root, Path) else ""
        raise UserError(f"{root}: no shards of the split '{split}'; expected {expected}{divide}")
    chosen = by_split[split]
    _refuse(root, split, chosen)
    names, names_file = shards.class_names(root, chosen)
    kind = _kind(chosen)
    raw = _scan(chosen, kind, names)
    if not raw.paths:
        raise UserError([*map(str, _first(raw.findings)), f"{root}: the split '{split}' has no images"])
    others: list[list[Location]] = []
    if names is None:
        if kind != "cls":  # boxes need the same class numbers in every split
            others = [each for name, each in by_split.items() if name != split]
            others = [each for each in others if not any(map(shards.is_compressed, each))]
        named = {name for each in others for name in _scan(each, kind, None).names} | {*raw.names}
        if all(map(is_number, named)):  # numbers without names, some of which may be unused
            raw.rename([str(number) for number in range(max(map(int, named), default=-1) + 1)])
        else:
            raw.rename(sorted(named))
        if class_names and all(map(is_number, raw.names)) and not all(map(is_number, class_names)):
            if len(class_names) < len(raw.names):
                raise UserError(
                    f"{root}: the data has a class {len(raw.names) - 1}, but data.classes has only "
                    f"{len(class_names)} names; expected at least {len(raw.names)}, starting with class 0"
                )
            raw.names = list(class_names)
    if isinstance(root, RemotePath):  # the fingerprint detects changes
        return raw
    scanned = [shard for each in (chosen, *others) for shard in each]
    folders = dict.fromkeys(str(folder) for shard in scanned for folder in (root, shard.parent))
    raw.depends = [*folders, *([names_file] if names_file else []), *map(str, scanned)]
    return raw


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write shards with copies of the images; see :func:`rankless.data.formats.packing.pack`."""
    packing.pack(splits, out)
    return []


def _refuse(root: Location, split: str, chosen: list[Location]) -> None:
    packed = [shard.name for shard in chosen if shards.is_compressed(shard)]
    if packed:
        raise UserError(
            f"{root}: {counted(len(packed), 'shard is', 'shards are')} compressed ({listed(packed)}), so "
            "single images cannot be read; decompress the shards"
        )
    if len({shard.parent for shard in chosen}) > 1:
        raise UserError(
            f"{root}: the split '{split}' exists twice, as a folder of shards and as shards with this name; "
            "move the folder or the shards away"
        )


def _kind(chosen: list[Location]) -> str:
    findings = Findings()
    for shard in chosen:
        for sample in samples(name_of(shard), findings):
            if sample.image and (here := [kind for kind in KINDS if kind in sample.members]):
                return here[0]
    raise UserError(
        [
            *map(str, _first(findings)),
            f"{chosen[0]}: no image has a label; expected consecutive members with the same base name, such "
            "as '0001.jpg' and '0001.cls' (a class), '0001.json' or '0001.txt' (boxes)",
        ]
    )


def _first(findings: Findings) -> list[object]:
    return [one for _, _, first in findings for one in first[:3]]


def _scan(chosen: list[Location], kind: str, names: list[str] | None) -> Raw:
    much = sum(map(size_of, chosen)) > _MUCH
    items = [(name_of(shard), kind, json.dumps(names)) for shard in chosen]
    # `chunk` is approximate, so small data also needs processes=1.
    return scan(index, items, "shards", chunk=1 if much else len(items), processes=None if much else 1)


def index(items: list[tuple[str, ...]]) -> Raw:
    """Read the byte range, the size and the labels of every image in some shards.

    Items are tuples of a shard, the kind of its labels, and the class names (or null) as JSON. If no class
    names are given, they are collected from the shards and may be numbers as text.
    """
    names = json.loads(items[0][2])
    part = _Part(kind=items[0][1], names=names, labels={name: at for at, name in enumerate(names or ())})
    for shard, *_ in items:
        part.add_shard(shard)
    return part.raw()


@dataclass
class _Part:
    kind: str
    names: Sequence[str] | None
    labels: dict[str, int]  # the index of each class; extended if no class names are given
    made: RawBuilder = field(default_factory=RawBuilder)

    def add_shard(self, shard: str) -> None:
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
            findings.add(kind, path_in(shard, sample.key), "" if label else "no image and no label")
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
        byte_range = sample.image.offset, sample.image.length
        shape = size(io.BufferedReader(Window(file, *byte_range)), path, findings)
        image = self.made.add_image(path, path, stated, size=shape, byte_range=byte_range)
        for line, (row, number) in enumerate(zip(rows, labels, strict=True), 1):
            if number is not None:
                self.made.add_box(image, row.box, number, line, row.flags, row.area)

    def _label(self, label: str, path: str) -> int | None:
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

    def raw(self) -> Raw:
        raw = self.made.raw(
            boxed=self.kind != "cls",
            counted="box",
            names=list(self.labels) if self.names is None else self.names,
            normalized=self.kind == "txt",
        )
        if self.names is None:
            raw.rename(sorted(self.labels))
        return raw


def _content(file: Ranged, label: Member) -> bytes:
    if label.length > reading.LABELS:
        raise LabelError(f"the label has {label.length:,} bytes; expected at most {reading.LABELS:,}")
    return file.pread(label.length, label.offset)
