"""The images that the arguments of ``rankless predict`` mean, and the names of the annotated images."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankless.data.images.image_file import EXTENSIONS
from rankless.errors import UserError

MOST_SCENES = 10_000  # each becomes an image in the output folder
SCENES = re.compile(r"digits:(train|val):(\d+)(?:-(\d+))?")
JPEG = frozenset({".jpg", ".jpeg", ".jpe", ".jfif"})


def find(sources: Sequence[str]) -> list[str]:
    """List the images that ``sources`` mean, in order, without duplicates; folders are sorted by path.

    Raises:
        UserError: lists all sources without an image.
    """
    images: dict[str, str] = {}
    problems = []
    for source in sources:
        matches = list(_expand(source))
        if not matches:
            problems.append(_no_image(source))
        for match in matches:
            images.setdefault(os.path.realpath(match), match)
    if problems or not sources:
        raise UserError(
            problems or "no images given; name files, folders, patterns or built-in scenes (digits:val:0-7)"
        )
    return list(images.values())


def _expand(source: str) -> Iterator[str]:
    path = Path(source)
    if path.is_dir():
        yield from _in_folder(path)
    elif path.is_file():
        yield source
    elif scenes := SCENES.fullmatch(source):
        first, last = int(scenes[2]), int(scenes[3] or scenes[2])
        many = last - first >= MOST_SCENES  # reported by `_no_image`
        for index in () if many else range(first, last + 1):
            yield f"digits:{scenes[1]}:{index}"
    else:
        for match in sorted(glob.glob(source, recursive=True)):  # noqa: PTH207 - takes absolute patterns too
            if Path(match).is_dir():
                yield from _in_folder(Path(match))
            elif Path(match).suffix.lower() in EXTENSIONS:
                yield match


def _in_folder(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS)
    return sorted(str(path) for path in paths if path.is_file())


def _no_image(source: str) -> str:
    if Path(source).is_dir():
        kinds = ", ".join(sorted(EXTENSIONS))
        return f"'{source}': no images in this folder or below (looked for {kinds})"
    if source.startswith("digits:"):
        return (
            f"'{source}': expected built-in scenes as digits:val:3 or digits:val:0-7, "
            f"at most {MOST_SCENES:,} at a time"
        )
    if glob.has_magic(source):
        return f"'{source}': no image matches this pattern"
    return f"'{source}': no such file or folder"


def output_names(sources: Sequence[str], out: Path) -> list[str]:
    """Name each annotated image: PNG except for JPEG; ``-2``, ``-3`` … where names are equal.

    Raises:
        UserError: a source is inside the output folder.
    """
    folder = Path(os.path.realpath(out))
    inside = [source for source in sources if folder in Path(os.path.realpath(source)).parents]
    if inside:
        raise UserError(
            f"'{inside[0]}' ({len(inside)} of the images) is in the output folder {out}, where annotated "
            "images would replace it or be taken for sources; give another folder with --out"
        )
    taken: set[str] = set()
    names = []
    for source in sources:
        path = Path(source)
        scene = SCENES.fullmatch(source) and not path.exists()
        stem = source.replace(":", "-") if scene else path.stem
        suffix = path.suffix if path.suffix.lower() in JPEG else ".png"
        name, number = stem + suffix, 1
        while name.casefold() in taken:
            number += 1
            name = f"{stem}-{number}{suffix}"
        taken.add(name.casefold())
        names.append(name)
    return names
