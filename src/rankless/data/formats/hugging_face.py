"""Read data sets in the layouts of Hugging Face ``datasets``: ``metadata.jsonl`` or Parquet.

In ``metadata.jsonl``, ``metadata.csv`` and ``metadata.parquet``, the column ``file_name`` contains the path
of each row's image, relative to the file. In other Parquet files, the rows contain the images.
"""

from __future__ import annotations

import csv
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from rankless.data.formats.folders import subfolders
from rankless.data.formats.parquet import ParquetTable
from rankless.data.formats.rows import Row, Table, names_image, read_tables
from rankless.data.formats.splits import chosen, usual_order
from rankless.data.images.image_file import is_image
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw
from rankless.errors import UserError, printable
from rankless.files import reading

TITLE = "Hugging Face"
LAYOUT = (
    "'train/metadata.jsonl' (or .csv, .parquet) with 'file_name', next to the images, or "
    "'data/train-00000-of-00001.parquet' with images"
)
_METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
_NUMBER = re.compile(r"(^|-)\d{4,}(-of-\d+)?(-[0-9a-f]{8,})?$")
"""The part of a file name after the split, as in ``train-00000-of-00001`` or ``0000``."""
_MOST = 50  # maximum number of folders that may be splits; more are classes
_HEAD = 1 << 16  # characters
_ENOUGH = 1000  # maximum number of folders to search for an image


def recognize(root: Path) -> str:
    if root.is_file():
        return "it is a Parquet file" if root.suffix == ".parquet" else ""
    try:
        first = next((files[0] for files in _files(root).values()), None)
    except UserError:  # raised again when the data is read
        return "it has Parquet files"
    return f"it has '{first.relative_to(root)}'" if first else ""


def splits(root: Path) -> list[str]:
    return usual_order(_files(root))


def read(root: Path, split: str, class_names: Sequence[str] | None = None) -> Raw:
    files = _files(root)
    name = chosen(root, split, files, LAYOUT)
    tables = {
        each: [(ParquetTable if file.suffix == ".parquet" else _Lines)(file) for file in files[each]]
        for each in files
    }
    raw = read_tables(root, tables.pop(name), [one for each in tables.values() for one in each], class_names)
    # New files or folders in these folders may be new splits.
    raw.depends += [str(each) for each in (root / "data", *subfolders(root)) if each.is_dir()]
    return raw


def _files(root: Path) -> dict[str, list[Path]]:
    if root.is_file():
        return {_NUMBER.sub("", root.stem) or "train": [root]}
    folders = subfolders(root)
    for tops in ([root], folders, subfolders(root / "data")):
        there = {
            top: next((top / name for name in _METADATA if _has_images(top / name)), None) for top in tops
        }
        if found := {"train" if top == root else top.name: [file] for top, file in there.items() if file}:
            return found
    tops = [root, root / "data", *(folders if len(folders) <= _MOST else ())]
    shards = {top: found for top in dict.fromkeys(tops) if (found := _shards(top))}
    if any("" in found for found in shards.values()):  # each split has a folder
        return {top.name if top in tops[2:] else "train": found[""] for top, found in shards.items()}
    if len(shards) > 1:
        names = ", ".join(map(str, shards))
        raise UserError(
            f"{root}: several folders contain Parquet files ({names}); use one of them as data.root"
        )
    return next(iter(shards.values()), {})


def _shards(folder: Path) -> dict[str, list[Path]]:
    """Return the Parquet files in a folder by split; "" is the split of a file named only by a number."""
    shards: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*.parquet")):
        shards.setdefault(_NUMBER.sub("", file.stem), []).append(file)
    return {name: files for name, files in shards.items() if _has_images(files[0])}


def _has_images(file: Path) -> bool:
    """Return whether the rows of a file probably refer to images or contain them.

    The result is true for an unreadable file. Without pyarrow, it is false for a Parquet file next to images.
    """
    if not reading.is_file(file):
        return False
    if file.suffix == ".parquet":
        try:
            table = ParquetTable(file)
        except UserError:
            walked = itertools.islice(os.walk(file.parent), _ENOUGH)
            return file.name in _METADATA or not any(is_image(name) for *_, names in walked for name in names)
        return bool(table.images) or any(map(names_image, table.columns))
    try:
        with reading.opened_text(file, errors="replace") as opened:
            head = opened.read(_HEAD)
    except OSError:
        return True
    return "file_name" in (head.partition("\n")[0] if file.suffix == ".csv" else head)


class _Lines(Table):
    def rows(self, findings: Findings) -> Iterator[Row]:
        try:
            with reading.opened_text(self.file) as lines:
                if self.file.suffix == ".csv":
                    yield from self._of_table(csv.DictReader(lines), findings)
                    return
                for number, line in enumerate(lines, 1):
                    try:
                        if line.strip():
                            yield number, msgspec.json.decode(line, type=dict)
                    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                        problem = f"{printable(str(error))}; expected a JSON object"
                        findings.add("not understood", f"{self.file}:{number}", problem)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            why = str(error) if isinstance(error, csv.Error) else reading.reason(error)
            raise UserError(f"{self.file}: cannot be read: {why}; expected rows in UTF-8") from None

    def _of_table(self, table: csv.DictReader[str], findings: Findings) -> Iterator[Row]:
        for row in table:
            if None in row:  # DictReader stores additional fields under this key
                count, expected = len(row) - 1 + len(row[None]), len(table.fieldnames or ())
                problem = f"found {count} fields; expected {expected}, as in the first line"
                findings.add("not understood", f"{self.file}:{table.line_num}", problem)
            else:
                yield table.line_num, row
