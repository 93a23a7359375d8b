"""Recognize single label files, so that a message can name what is in a folder of unknown format."""

from __future__ import annotations

import codecs
import io
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rankless.data.formats import csv_table, darknet, lines
from rankless.data.images.image_file import is_image
from rankless.errors import UserError, printable
from rankless.files import reading

_SNIFFED = 65536
_FEW = 200  # maximum number of files to look at in a folder
_FOLDERS = 50  # maximum number of folders to look at
_DO = {
    "multi-label classes": "images with several classes are not supported; export one folder per class",
    "TFRecord": "TFRecord is not supported; export COCO JSON, YOLO or Pascal VOC",
    "YOLO labels": "add a file 'classes.txt' with one class name per line, and put images and labels side by "
    "side or in 'images' and 'labels'",
}
_KINDS = {
    ".json": (
        ("COCO JSON", rb"\A\s*\{", rb'"annotations"\s*:', rb'"categories"\s*:'),
        ("Label Studio JSON", rb"\A\s*\[", rb'"(annotations|completions)"\s*:\s*\[', rb'"data"\s*:\s*\{'),
        ("Label Studio JSON", rb"\A\s*\[", rb'"annotation_id"\s*:', rb'"annotator"\s*:'),  # JSON-MIN
        (
            "CreateML JSON",
            rb"\A\s*\[",
            rb'"image(filename)?"\s*:',
            rb'"coordinates"\s*:|"annotations?"\s*:\s*\[\s*\]',
        ),
        ("labelme JSON", rb"\A\s*\{", rb'"shapes"\s*:\s*\[', rb'"image(Path|Height|Data)"\s*:'),
        ("VIA JSON", rb"\A\s*\{", rb'"(_via_\w+|shape_attributes|file_attributes|fid_list)"\s*:'),
    ),
    ".xml": (("Pascal VOC", rb"<annotation[\s>]"), ("CVAT XML", rb"<annotations[\s>]")),
}
"""For each extension, names of formats, and expressions that all occur at the start or end of their files."""
_ELSE = "put it where this format expects it, or give the file itself as data.root"


def looks_like(file: Path) -> str:
    """Return the format that a label file seems to have, or "" if it is none that is known."""
    ending = file.suffix.lower()
    if ending in (".tfrecord", ".tfrecords", ".record"):
        return "TFRecord"
    if ending in (".csv", ".tsv"):
        return _table(file)
    if ending == ".txt" and darknet.is_label_file(file):
        return "YOLO labels"
    if ending == ".txt" and lines.list_kind(file) == "boxes":
        return lines.TITLE
    kinds = _KINDS.get(ending)
    text = ends_of(file) if kinds else b""
    return next((name for name, *signs in kinds or () if all(re.search(sign, text) for sign in signs)), "")


def _table(file: Path) -> str:
    try:
        rows = (cells for _, cells in csv_table.rows(file, ","))
        header, first = next(rows, []), next(rows, [])
    except UserError:
        return ""
    marks = set(first[1:])
    if len(header) == len(first) > 2 and is_image(first[0]) and marks <= {"0", "1"}:
        return "multi-label classes"
    columns = csv_table.columns_of(file)
    return csv_table.TITLE if columns and columns.box else ""


def ends_of(file: Path) -> bytes:
    """Return the first and the last bytes of a file, or b"" if it cannot be read."""
    try:
        with io.BufferedReader(reading.opened(file)) as opened:
            shown = opened.read(_SNIFFED).removeprefix(codecs.BOM_UTF8)
            opened.seek(max(_SNIFFED, file.stat().st_size - _SNIFFED))
            return shown + b"\n" + opened.read(_SNIFFED)
    except OSError:
        return b""


def label_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield a label file of each folder in ``root`` that has one, and what it looks like."""
    for folder, _, _ in itertools.islice(os.walk(root), _FOLDERS):
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, _FEW))
        files = (Path(folder, name) for name in names if not is_image(name) and name[0] != ".")
        for file in files:
            if file.is_file() and (what := looks_like(file)):
                yield file, what
                break


def described(root: Path) -> str:
    """Return a sentence on the first label file in ``root`` and on what to do with it, or ""."""
    for file, what in label_files(root):
        name = printable(str(file.relative_to(root)))
        return f"'{name}' looks like {what}; {_DO.get(what, _ELSE)}"
    return ""
