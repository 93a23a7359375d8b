"""Where a COCO data set keeps the annotations and the images of its splits."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from rankless.data.formats.splits import without_year
from rankless.files import reading

_BESIDE = ("_annotations.coco.json", "annotations.json", "labels.json")
"""Files that lie in a split's own folder, beside its images or above them."""
_MARKS = re.compile(rb'"(images|annotations|categories)"\s*:')
_ENTRIES = re.compile(rb'"(file_name|image_id|category_id|bbox|supercategory|licenses)"\s*:')
_SNIFFED = 65536
_MOST = 200
"""In a folder of more JSON files than these each is of a single image, and none is COCO's."""
_WORDS = re.compile(r"^(instances|bbox|detection)[_-]|[_-](annotations|instances|coco|bbox)$", re.IGNORECASE)
_OTHERS = re.compile(r"^(captions|panoptic|stuff|image_info)[_-]", re.IGNORECASE)


def annotation_files(root: Path) -> dict[str, Path]:
    """Split to annotation file; ``root`` is a folder or such a file itself."""
    if root.is_file():
        return {stem(root): root}
    found: dict[str, Path] = {}
    for file in _candidates(root):
        name = file.parent.name if file.name in _BESIDE and file.parent != root else stem(file)
        found.setdefault(name, file)
    if len(found) == 1 and next(iter(found.values())).name in _BESIDE:
        return found if next(iter(found.values())).parent != root else {"train": next(iter(found.values()))}
    return {short: found[name] for short, name in without_year(found).items()}


def looked_into(root: Path, files: Iterable[Path]) -> list[str]:
    """The folders where another annotation file would change what :func:`annotation_files` finds."""
    if root.is_file():
        return []
    return list(dict.fromkeys(map(str, (root, root / "annotations", *(file.parent for file in files)))))


def image_folders(root: Path, split: str, file: Path) -> list[Path]:
    """Folders that the names in an annotation file may be relative to, the likeliest first."""
    names = list(dict.fromkeys((stem(file), split, file.stem)))
    if file.name in _BESIDE:
        names = [split]
    tops = [root if root.is_dir() else file.parent]
    if file.parent == tops[0] and tops[0].name in {"annotations", "labels", "json"}:
        tops = [file.parent.parent]  # its folder alone was given
    folders = [file.parent, file.parent / "images", file.parent / "data"] if file.name in _BESIDE else []
    for top in tops:
        for name in names:
            folders += [top / name, top / "images" / name, top / name / "images"]
        folders += [top / "images", top / "data", top / "JPEGImages", top]
    return [*folders, file.parent]


def _candidates(root: Path) -> Iterator[Path]:
    for folder in (root / "annotations", root):
        files = sorted(folder.glob("*.json")) if folder.is_dir() else []
        if len(files) > _MOST:
            continue
        yield from (f for f in files if not _OTHERS.match(f.name) and is_coco(f))
    with os.scandir(root) as listed:
        folders = sorted(
            entry.name for entry in listed if entry.name != "annotations" and reading.is_folder(entry)
        )
    for name in folders:
        beside = [root / name / file for file in _BESIDE]
        yield from [file for file in beside if file.is_file() and is_coco(file)][:1]


def is_coco(file: Path) -> bool:
    """Whether a file looks like COCO's by its name, or by its beginning and end."""
    if not file.is_file():
        return False
    if re.match(r"instances_|_annotations\.coco\.json$", file.name):
        return True
    try:
        with io.BufferedReader(reading.opened(file)) as opened:
            shown = opened.read(_SNIFFED)
            opened.seek(max(_SNIFFED, file.stat().st_size - _SNIFFED))
            shown += b"\n" + opened.read(_SNIFFED)
    except OSError:
        return False
    marks = {mark.group(1) for mark in _MARKS.finditer(shown)}
    return len(marks) > 1 or (bool(marks) and _ENTRIES.search(shown) is not None)


def stem(file: Path) -> str:
    """A file's name without what every such name has: ``instances_train2017.json`` is ``train2017``."""
    if file.name == _BESIDE[0]:
        return file.parent.name
    return _WORDS.sub("", file.stem.removesuffix(".coco")) or file.stem
