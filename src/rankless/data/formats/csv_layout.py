"""Where a CSV data set keeps its splits and the names of its classes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rankless.data.formats.class_names import names_file, read_names
from rankless.data.formats.csv_columns import Columns, rows, understood
from rankless.errors import UserError, printable
from rankless.files import reading

_BESIDE = ("_annotations.csv", "annotations.csv", "labels.csv")
_CLASSES = re.compile(r"(.*[_-])?class(es|[_-]list|[_-]descriptions.*)$", re.IGNORECASE)
_WORDS = re.compile(r"^oidv\d+-|(?<=.)[_-](labels?|annotations?([_-]bbox)?|bbox|boxes)$", re.IGNORECASE)
_MOST = 200
"""In a folder of more files than these each is of a single image."""
_USUAL = re.compile(r"(train|val|test|dev)", re.IGNORECASE)


def csv_files(root: Path) -> dict[str, tuple[Path, Columns]]:
    """Split to its file and what its columns mean; files of another kind are none."""
    if root.is_file():
        columns = understood(root) if root.suffix.lower() in {".csv", ".tsv"} else None
        return {_name(root): (root, columns)} if columns else {}
    found: dict[str, tuple[Path, Columns]] = {}
    tables = sorted((*root.glob("*.csv"), *root.glob("*.tsv")))
    for file in tables if len(tables) <= _MOST else ():
        if file.is_file() and not _CLASSES.fullmatch(file.stem) and (columns := understood(file)):
            found.setdefault("train" if file.name == _BESIDE[0] else _name(file), (file, columns))
    with os.scandir(root) as listed:
        folders = sorted(entry.name for entry in listed if reading.is_folder(entry))
    for folder in folders:
        for file in (root / folder / name for name in _BESIDE):
            if folder not in found and file.is_file() and (columns := understood(file)):
                found[folder] = (file, columns)
    return found


def is_plain(file: Path, columns: Columns, root: Path) -> bool:
    """Whether a file is of a data set beyond doubt: it has boxes, or is called as a split is."""
    return columns.box is not None or file == root or _USUAL.match(_name(file)) is not None


def image_folders(root: Path, split: str, file: Path) -> list[Path]:
    """Folders that the names in a file may be relative to, the likeliest first."""
    top = root if root.is_dir() else root.parent
    inside = [top / split, top / "images" / split, top / split / "images", top / "images"]
    return [file.parent, *inside, file.parent / "images", top / "JPEGImages", top, top.parent]


def stated_classes(root: Path) -> tuple[Path, tuple[str, ...]] | None:
    """The file with class names beside the data, and the names in the order of their numbers.

    It is ``classes.csv`` with rows ``name,number`` as RetinaNet has it, or a ``classes.txt``.

    Raises:
        UserError: it cannot be read, is empty, or names a class twice.
    """
    top = root if root.is_dir() else root.parent
    file = next((f for f in (top / "classes.csv", top / "class_list.csv") if f.is_file()), None)
    if file is None:
        listed = names_file([top])
        return (listed, read_names(listed)) if listed else None
    numbered: list[tuple[int, str]] = []
    for line, cells in rows(file, ","):
        if len(cells) > 1 and _whole(cells[1]):
            numbered.append((int(cells[1]), cells[0]))
        elif len(cells) > 1 and _whole(cells[0]):
            numbered.append((int(cells[0]), cells[1]))
        elif len(cells) == 1:
            numbered.append((len(numbered), cells[0]))
        elif numbered:  # else it is the columns' names
            shown = printable(",".join(cells))
            raise UserError(f"{file}:{line}: '{shown}', expected a class name and its number.")
    names = tuple(name for _, name in sorted(numbered, key=lambda pair: pair[0]))
    if not all(map(is_text, names)):
        raise UserError(f"{file} is not in UTF-8, expected rows such as 'cat,0' in UTF-8.")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if not names or twice:
        found = f"'{printable(twice[0])}' is there more than once" if twice else "it names no class"
        raise UserError(f"{file}: {found}, expected rows such as 'cat,0', each class once.")
    return file, names


def is_text(name: str) -> bool:
    """Whether a cell was written in UTF-8; bytes that were not are surrogates in it."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _name(file: Path) -> str:
    if file.name == _BESIDE[0]:
        return file.parent.name
    return _WORDS.sub("", _WORDS.sub("", file.stem)) or file.stem


def _whole(cell: str) -> bool:
    return cell.isascii() and cell.isdigit() and len(cell) < 10
