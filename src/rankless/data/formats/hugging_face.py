"""Reader of data sets as Hugging Face's package ``datasets`` lays them out: ``metadata.jsonl``, or Parquet.

A row of ``metadata.jsonl``, ``metadata.csv`` or ``metadata.parquet`` names its image in ``file_name``,
relative to the file. In other Parquet files, the rows contain the images. A row has ``objects``, a dict of
lists or a list of dicts with ``bbox`` (x, y, width, height in pixels) and ``category``, or a ``label``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankless.data.formats.folders import ImageSearch, numbered_names, subfolders
from rankless.data.formats.listed_images import ListedImages
from rankless.data.formats.parquet import ParquetFile
from rankless.data.formats.splits import chosen, usual_order
from rankless.data.index.annotations import CROWD
from rankless.data.index.findings import Findings
from rankless.data.index.raw import NO_AREA, Raw, RawBuilder
from rankless.data.index.scan import size
from rankless.errors import UserError, counted, printable
from rankless.files import reading

TITLE = "Hugging Face"
LAYOUT = (
    "'train/metadata.jsonl' (or .csv, .parquet) beside the images, or 'data/train-00000-of-00001.parquet'"
)

_METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
_NUMBER = re.compile(r"(^|-)\d{4,}(-of-\d+)?(-[0-9a-f]{8,})?$")
"""The end of a shard's name after its split: ``train-00000-of-00001`` or ``0000``."""
_BOXES, _CROWD = ("bbox", "bboxes", "boxes", "box"), ("iscrowd", "is_crowd")
_CLASSES = ("category", "categories", "category_id", "label", "labels", "class", "classes", "class_id")
_LABELS = ("label", "labels", "class", "category", "fine_label")
_LOOKED_AT = 1000  # rows
_MOST = 50  # folders; more are classes
_WHOLE = 1.001  # if no number is larger, the numbers are fractions of the image's sides
_SLACK = 1.0  # pixels by which a box may reach over the edge of its image

Row = tuple[int, dict[str, Any]]


def recognize(root: Path) -> str:
    """Return why ``root`` is laid out for ``datasets``; empty if it is not."""
    if root.is_file():
        return "it is a Parquet file" if root.suffix == ".parquet" else ""
    first = next((files[0] for files in _tables(root).values()), None)
    return f"it has '{first.relative_to(root)}'" if first else ""


def splits(root: Path) -> list[str]:
    """Return the splits."""
    return usual_order(_tables(root))


def _tables(root: Path) -> dict[str, list[Path]]:
    """Return the files of each split."""
    if root.is_file():
        return {_NUMBER.sub("", root.stem) or "train": [root]}
    folders = subfolders(root)
    if beside := [file for name in _METADATA if (file := root / name).is_file()]:
        return {"train": beside[:1]}
    for tops in (folders, subfolders(root / "data")):
        found = {top.name: [top / name for name in _METADATA if (top / name).is_file()][:1] for top in tops}
        if any(found.values()):
            return {name: files for name, files in found.items() if files}
    tops = [root, root / "data", *(folders if len(folders) <= _MOST else ())]
    kinds = {folder: shards for folder in dict.fromkeys(tops) if (shards := _shards(folder))}
    numbered = {
        "train" if folder in tops[:2] else folder.name: shards[""]
        for folder, shards in kinds.items()
        if "" in shards
    }
    if numbered:
        return numbered
    if len(kinds) > 1:
        names = ", ".join(str(folder) for folder in kinds)
        raise UserError(
            f"{root}: several folders have Parquet files ({names}); give one of them as data.root"
        )
    return next(iter(kinds.values()), {})


def _shards(folder: Path) -> dict[str, list[Path]]:
    """Return the Parquet files in a folder by split, which is empty for a mere number."""
    shards: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*.parquet")):
        shards.setdefault(_NUMBER.sub("", file.stem), []).append(file)
    return shards


class _Columns(NamedTuple):
    """The names of a row's parts.

    Attributes:
        image: the column with the image's file name; empty if the image is in the file.
        outer: the column of the objects; empty if ``box`` and ``label`` are columns themselves.
        box, label: the keys of an object; ``box`` is empty if images have one class each.
    """

    image: str
    outer: str
    box: str
    label: str


@dataclass
class _Table:
    """One file with rows."""

    file: Path
    parquet: ParquetFile | None = None

    def __post_init__(self) -> None:
        self.parquet = ParquetFile(self.file) if self.file.suffix == ".parquet" else None

    def rows(self, findings: Findings | None = None) -> Iterator[Row]:
        """Yield the number of each row, from 1, and the row; add rows that are none to ``findings``."""
        if self.parquet is not None:
            yield from enumerate(self.parquet.rows(), 1)
            return
        try:
            with reading.opened_text(self.file) as lines:
                if self.file.suffix == ".csv":
                    yield from enumerate(csv.DictReader(lines), 2)
                    return
                for number, line in enumerate(lines, 1):
                    if not line.strip():
                        continue
                    try:
                        yield number, msgspec.json.decode(line, type=dict)
                    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                        if findings is not None:
                            problem = f"{printable(str(error))}; expected an object in JSON"
                            findings.add("not understood", f"{self.file}:{number}", problem)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            why = str(error) if isinstance(error, csv.Error) else reading.reason(error)
            raise UserError(f"{self.file}: cannot be read: {why}; expected rows in UTF-8") from None


def read(root: Path, split: str, class_names: Sequence[str] | None = None) -> Raw:
    """Read one split; see :class:`rankless.data.formats.registry.Format`."""
    by_split = _tables(root)
    name = chosen(root, split, by_split, LAYOUT)
    tables = {each: [_Table(file) for file in files] for each, files in by_split.items()}
    columns = _columns(tables[name])
    names, file, about = _names(root, tables, columns, class_names)
    made, ranges, sizes = RawBuilder(), list[tuple[int, int]](), list[tuple[int, int]]()
    folders = [root, root / "data", *subfolders(root)] if root.is_dir() else []
    depends = [str(each) for each in (*folders, *(one for files in by_split.values() for one in files))]
    depends += [str(file)] if file else []
    reader = _Reader(
        tables[name][0].file, ImageSearch([tables[name][0].file.parent]), made, columns=columns, names=names
    )
    for table in tables[name]:
        reader.file = table.file
        if columns.image:
            reader.add_named(table)
        else:
            reader.add_stored(table, ranges, sizes)
    rest: dict[str, Any] = {"boxed": bool(columns.box), "counted": "line" if columns.image else "row"}
    if not columns.image:
        rest |= {
            "byte_ranges": np.array(ranges, np.int64).reshape(-1, 2),
            "sizes": np.array(sizes, np.int32).reshape(-1, 2),
        }
        if not made.paths:
            raise UserError(f"{reader.file}: it has no row with an image; expected encoded images")
        raw = made.raw(names=names, depends=depends, about=about, **rest)
    else:
        raw = reader.raw(names, depends, about, "it has no row with an image", **rest)
    return _with_corners(raw)


def _columns(tables: Sequence[_Table]) -> _Columns:
    """Return the columns of the rows, which the first rows decide."""
    stored = tables[0].parquet.images if tables[0].parquet else ""
    best = image = ""
    for _, row in islice((row for table in tables for row in table.rows()), _LOOKED_AT):
        image = next((name for name in row if re.fullmatch(r"(.*_)?file_name", name)), "")
        for outer, inner in (("", row), *((name, _first(value)) for name, value in row.items())):
            if box := next((each for each in _BOXES if inner.get(each) is not None), ""):
                label = next((each for each in _CLASSES if each in inner), "")
                return _Columns("" if stored else image, outer, box, label)
        best = best or next((each for each in _LABELS if each in row), "")
    if not (stored or image):
        raise UserError(f"{tables[0].file}: no images; expected a column 'file_name', or encoded images")
    if not best:
        raise UserError(
            f"{tables[0].file}: neither boxes nor classes; expected 'objects' with 'bbox' and 'category', "
            "or a column 'label'"
        )
    return _Columns("" if stored else image, "", "", best)


def _first(value: Any) -> Mapping[str, Any]:
    """Return the keys of the objects in a column: a dict of lists, or a list of dicts."""
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, dict) else {}


def _objects(row: Mapping[str, Any], columns: _Columns) -> list[Mapping[str, Any]]:
    """Return a row's objects as dicts; raise ValueError if there are not as many classes as boxes."""
    value = row.get(columns.outer) if columns.outer else row
    if not columns.box:
        return [row]
    if isinstance(value, list):
        return [each if isinstance(each, dict) else {} for each in value]
    keys = [columns.box, columns.label, *_CROWD, "area"]
    lists = {key: value[key] for key in keys if isinstance((value or {}).get(key), list)} if value else {}
    count = len(lists.get(columns.box, ()))
    if any(len(each) != count for key, each in lists.items() if key in keys[:2]):
        raise ValueError(f"{counted(count, 'box', 'boxes')}, but {len(lists[columns.label])} classes")
    return [{key: each[at] for key, each in lists.items() if len(each) == count} for at in range(count)]


def _names(
    root: Path, tables: Mapping[str, list[_Table]], columns: _Columns, given: Sequence[str] | None
) -> tuple[tuple[str, ...], Path | None, list[str]]:
    """Return the class names, the file that lists them, and notes."""
    every = [table for files in tables.values() for table in files]
    for table in every:
        if table.parquet and (named := table.parquet.class_names(columns.outer, columns.label)):
            return tuple(named), None, []
    if not columns.label:
        raise UserError(
            f"{every[0].file}: the boxes have no class; expected 'category' beside '{columns.box}'"
        )
    found: set[Any] = set()
    for table in every:
        for _, row in table.rows():
            try:
                found.update(_class(each.get(columns.label)) for each in _objects(row, columns))
            except ValueError:
                continue  # reported when the split is read
    texts = {each for each in found if isinstance(each, str)}
    if texts or not found - {None}:
        return tuple(sorted(str(each) for each in found - {None})), None, []
    folder = root if root.is_dir() else root.parent
    missing = (
        f"{root}: the classes are numbers without names; expected a 'classes.txt' there (one name a line, "
        "the first is class 0)"
    )
    names, file = numbered_names([folder], given, missing)
    return names, file, [f"class names from {file}"] if file else []


def _class(value: Any) -> int | str | None:
    """Return a class as a number or a name; None if it is neither."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else value or None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass
class _Reader(ListedImages):
    """Reader of one split's rows."""

    columns: _Columns = field(kw_only=True)
    names: Sequence[str] = field(kw_only=True)

    def __post_init__(self) -> None:
        self.labels: dict[Any, int] = {name: label for label, name in enumerate(self.names)}

    def add_named(self, table: _Table) -> None:
        """Add the rows of a file whose images are files."""
        for number, row in table.rows(self.made.findings):
            name = row.get(self.columns.image)
            if not isinstance(name, str) or not name:
                self.report(
                    "not understood", f":{number}", f"no '{self.columns.image}'; expected a file's name"
                )
            elif path := self.locate(name, f":{number}"):
                if path in self.numbers:
                    self.report("listed twice", f":{number}", f"'{printable(name)}'")
                else:
                    self._add(row, self.image(path), number)

    def add_stored(self, table: _Table, ranges: list[tuple[int, int]], sizes: list[tuple[int, int]]) -> None:
        """Add the rows of a file that contains its images."""
        assert table.parquet is not None
        for (number, row), stored in zip(table.rows(), table.parquet.stored(), strict=True):
            if stored is None:
                self.report("no image", f": row {number}", "no bytes")
                continue
            ranges.append((stored.offset, len(stored.content)))
            sizes.append(size(io.BytesIO(stored.content), stored.path, self.made.findings))
            self._add(row, self.made.add_image(stored.path, str(table.file)), number)

    def _add(self, row: Mapping[str, Any], image: int, number: int) -> None:
        where = f":{number}" if self.columns.image else f": row {number}"
        try:
            objects = _objects(row, self.columns)
        except ValueError as error:
            self.report("not understood", where, str(error))
            return
        for each in objects:
            label = self._label(each.get(self.columns.label), where)
            if label is None:
                continue
            if not self.columns.box:
                self.made.add_label(image, label, number)
                continue
            try:
                x, y, width, height = each[self.columns.box]
                box = x, y, x + width, y + height
                crowd = CROWD if any(each.get(key) for key in _CROWD) else 0
                area = each.get("area")
                self.made.add_box(image, box, label, number, crowd, NO_AREA if area is None else float(area))
            except (TypeError, ValueError, KeyError, OverflowError):
                shown = printable(str(each.get(self.columns.box)))
                self.report("not a number", where, f"'{shown}'; expected four numbers: x, y, width, height")

    def _label(self, value: Any, where: str) -> int | None:
        label = _class(value)
        if label in self.labels:
            return self.labels[label]
        if isinstance(label, int) and 0 <= label < len(self.names):
            return label
        if isinstance(label, int):
            expected = f"expected 0 to {len(self.names) - 1}"
            self.report("class out of range", where, f"{label}; {expected}")
        else:
            self.report("unnamed class", where, f"{printable(repr(value))}; expected a class")
        return None


def _with_corners(raw: Raw) -> Raw:
    """Decide by the values whether boxes are fractions, and whether they are corners, and say so."""
    if raw.boxes is None or not len(raw.boxes) or not np.isfinite(raw.boxes).all():
        return raw
    boxes, written = raw.boxes, raw.boxes.copy()
    written[:, 2:] -= boxes[:, :2]
    raw.normalized = bool((np.abs(written) <= _WHOLE).all())
    most = np.ones_like(written) if raw.normalized else np.tile(raw.sizes[raw.image, ::-1], 2).astype(float)
    known = most[:, 0] > 0
    beyond = ((boxes > most + _SLACK * (not raw.normalized) + 0.01).any(1) & known).sum()
    fits = (written[known] <= most[known] + _SLACK).all() and (written[:, 2:] > written[:, :2]).all()
    if beyond and fits:
        raw.boxes = written
        reach = counted(int(beyond), "box", "boxes")
        raw.about.append(
            f"boxes are read as corners x1, y1, x2, y2: as x, y, width, height {reach} would reach over "
            "the edge of the image"
        )
    if raw.normalized:
        raw.about.append("boxes are normalized to 0–1")
    return raw
