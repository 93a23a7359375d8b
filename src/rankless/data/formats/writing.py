"""How a converted data set comes by its images."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from rankless.data.images.image_file import MOST_BYTES
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import content
from rankless.errors import UserError
from rankless.files.writing import copy


@dataclass(frozen=True)
class ImageFiles:
    """Brings images into a new data set.

    Attributes:
        how: ``copy``, or ``link`` (hard where the file system allows it, else symbolic): then a program that
            writes into an image of one data set changes the other.
    """

    how: Literal["copy", "link"] = "copy"

    def put(self, annotations: Annotations, index: int, target: Path) -> None:
        """Bring image ``index`` to ``target``; its bytes stay as they are."""
        target.parent.mkdir(parents=True, exist_ok=True)
        source = annotations.path(index)
        if len(annotations.spans):
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
    """A name for every image, with its ending: ``IMG_1.jpg``.

    No two have the same name without their endings, by which annotations find their image. Images of one
    name in different folders get the folder's before their own. A character that a list of files cannot hold,
    and a dot in front, which would hide the file, become ``_``.

    Args:
        annotations: of one split.
        taken: names that are given already, without endings; those given now are added. None: none yet.
        only: the images to name; None names all.
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
    """What must differ: some file systems know neither case nor the Unicode form of a name."""
    return unicodedata.normalize("NFC", PurePosixPath(name).stem).casefold()


def _plain(name: str) -> str:
    shown = "".join(letter if letter.isprintable() else "_" for letter in name).strip()
    stem, ending = PurePosixPath(shown).stem.strip(), PurePosixPath(shown).suffix
    return f"_{stem.lstrip('.')}{ending}" if not stem or stem.startswith(".") else f"{stem}{ending}"


def names_of(splits: Mapping[str, Annotations]) -> tuple[str, ...]:
    """The class names of a data set.

    Raises:
        UserError: its splits number them differently.
    """
    names = {data.class_names: split for split, data in splits.items()}
    if len(names) > 1:
        first, second = list(names.values())[:2]
        raise UserError(
            f"The splits '{first}' and '{second}' have other class names, expected the same in the same "
            "order. Write each into a data set of its own."
        )
    return next(iter(names), ())
