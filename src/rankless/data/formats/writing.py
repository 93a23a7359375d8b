"""Helpers for the writers of all formats: image files, names, numbers and notes on lost information."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from rankless.data.images.image_file import MOST_BYTES
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.data.index.byte_ranges import content
from rankless.errors import UserError, counted
from rankless.files.writing import copy

_BREAKS = re.compile("[\0\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
"""Characters that some programs interpret as line breaks, and NUL, which file names cannot contain."""


@dataclass(frozen=True)
class ImageFiles:
    """Copies or links images into a new data set.

    ``link`` creates hard links if possible, otherwise symbolic links. Changing a linked image changes it in
    both data sets.
    """

    how: Literal["copy", "link"] = "copy"

    def put(self, annotations: Annotations, index: int, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        source = annotations.path(index)
        if len(annotations.byte_ranges):
            target.write_bytes(content(annotations, index))
        elif self.how == "copy":
            copy(source, target, MOST_BYTES)
        else:
            try:
                os.link(Path(source).resolve(), target)
            except OSError:
                target.symlink_to(Path(source).resolve())


def file_names(
    annotations: Annotations, taken: set[str] | None = None, only: Sequence[int] | None = None
) -> Iterator[str]:
    """Yield a unique file name for every image, or for the images with the indices ``only``.

    Names are unique even without extensions, because annotations refer to images without extensions. Images
    with the same name are prefixed with the names of their folders. Unprintable characters and leading dots,
    which would hide the file, are replaced with ``_``. The key of each new name is added to ``taken``.
    """
    taken = set() if taken is None else taken
    for index in range(len(annotations)) if only is None else only:
        parts = PurePosixPath(annotations.path(index)).parts
        name, depth = _plain(parts[-1]), 1
        while _key(name) in taken:
            depth += 1
            whole = "_".join(part.strip("/") for part in parts[-depth:])
            name = _plain(whole) if depth <= len(parts) else f"{index}_{name}"
        taken.add(_key(name))
        yield name


def _key(name: str) -> str:
    """Return a key that is unique for file names even if case, Unicode form and extension are ignored."""
    return unicodedata.normalize("NFC", PurePosixPath(name).stem).casefold()


def _plain(name: str) -> str:
    shown = "".join(letter if letter.isprintable() else "_" for letter in name).strip()
    stem, ending = PurePosixPath(shown).stem.strip(), PurePosixPath(shown).suffix
    return f"_{stem.lstrip('.')}{ending}" if not stem or stem.startswith(".") else f"{stem}{ending}"


def names_of(splits: Mapping[str, Annotations]) -> tuple[str, ...]:
    """Return the class names of a data set; raise an error if they differ between splits."""
    names = {data.class_names: split for split, data in splits.items()}
    if len(names) > 1:
        first, second = list(names.values())[:2]
        raise UserError(
            f"'{first}' and '{second}' have different class names; expected the same names in the same "
            "order; convert each split separately"
        )
    return next(iter(names), ())


def shortest(value: float) -> str:
    """Format a number with the fewest digits that give the same float64 when read back."""
    return str(int(value)) if value.is_integer() else repr(value)


def lost_of(split: str, count: int, one: str, many: str, what: str) -> list[str]:
    """Return a list with a note such as "train: 2 boxes marked difficult: …"; empty if ``count`` is 0."""
    return [f"{split}: {counted(count, one, many)} {what}"] if count else []


def lost_flags(annotations: Annotations, split: str) -> list[str]:
    """Return notes on flags and areas that a format cannot store."""
    flags: Any = annotations.flags
    sentences = []
    for flag, what in ((DIFFICULT, "difficult"), (CROWD, "a crowd")):
        marked = f"marked {what}: dropped, because the format has no such flag"
        sentences += lost_of(split, int(((flags & flag) > 0).sum()), "box", "boxes", marked)
    return sentences + lost_areas(split, int((~np.isnan(annotations.areas) & (flags == 0)).sum()))


def lost_areas(split: str, count: int) -> list[str]:
    """Return a list with a note on the lost areas of ``count`` objects; empty if ``count`` is 0."""
    rest = "area; the area of the box is used instead"
    return lost_of(split, count, "object loses its", "objects lose their", rest)


def rounded(split: str, count: int) -> list[str]:
    """Return a list with a note on ``count`` rounded boxes; empty if ``count`` is 0."""
    where = "within a millionth of a pixel of the edge: rounded"
    return lost_of(split, count, "box starts", "boxes start", where)


def on_one_line(names: Iterable[str]) -> Iterator[str]:
    """Yield the names with line breaks replaced with ``_``."""
    return (_BREAKS.sub("_", name) for name in names)


def fit_names(names: Iterable[str], *, distinct: bool) -> tuple[list[str], list[str]]:
    """Return class names that fit on one line each, and a list with a note if any name was changed.

    With ``distinct``, the class number is appended to repeated names.
    """
    names, made, seen = list(names), [], set[str]()
    for label, name in enumerate(names):
        fit = _BREAKS.sub("_", name).strip() or "_"
        while distinct and fit in seen:
            fit = f"{fit} ({label})"
        seen.add(fit)
        made.append(fit)
    changed = [(old, new) for old, new in zip(names, made, strict=True) if old != new]
    if not changed:
        return made, []
    old, new = changed[0]
    changes = counted(len(changed), "class name was", "class names were")
    return made, [f"{changes} changed to fit on one line, such as {old!r} to {new!r}"]
