"""How a converted data set comes by its pictures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from rankless.data.annotations import Annotations
from rankless.data.spans import content


@dataclass(frozen=True)
class PictureFiles:
    """Brings pictures into a new data set.

    Attributes:
        how: ``copy``, or ``link`` (hard where the file system allows it, else symbolic).
    """

    how: Literal["copy", "link"] = "link"

    def put(self, annotations: Annotations, index: int, target: Path) -> None:
        """Bring picture ``index`` to ``target``; its bytes stay as they are."""
        target.parent.mkdir(parents=True, exist_ok=True)
        source = annotations.path(index)
        if len(annotations.spans):
            target.write_bytes(content(annotations, index))
        elif self.how == "copy":
            shutil.copyfile(source, target)
        else:
            try:
                os.link(Path(source).resolve(), target)
            except OSError:
                target.symlink_to(Path(source).resolve())


def file_names(annotations: Annotations) -> Iterator[str]:
    """A name for every picture, different from all others of the split, with its ending: ``IMG_1.jpg``.

    Pictures of one name in different folders get the folder's before their own.
    """
    taken: set[str] = set()
    for index in range(len(annotations)):
        parts = PurePosixPath(annotations.path(index)).parts
        name, depth = parts[-1], 1
        while name.casefold() in taken:
            depth += 1
            name = "_".join(parts[-depth:]).strip("/") if depth <= len(parts) else f"{index}_{name}"
        taken.add(name.casefold())
        yield name
