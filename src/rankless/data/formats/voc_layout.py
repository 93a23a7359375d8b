"""Where a Pascal VOC data set has the images of a split: its folders and its lists.

Understood are a folder with ``Annotations``, ``JPEGImages`` and ``ImageSets/Main``, as VOC2012 has them; a
folder that holds one or several such years, with or without a ``VOCdevkit`` between; the same without lists;
and annotations beside their images, in a folder for each split or in one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rankless.data.formats.folders import FolderNames, SplitFiles, composed, read_text, subfolders
from rankless.data.formats.splits import chosen, usual_order
from rankless.data.images.image_file import EXTENSIONS, is_image
from rankless.errors import UserError, printable

LAYOUT = "'Annotations' (XML) and 'JPEGImages' with lists in 'ImageSets/Main', or XML files beside the images"
_ANNOTATIONS, _IMAGES = ("Annotations", "annotations"), ("JPEGImages", "images", "Images")
_FLAGS = {"-1", "0", "1"}  # the lists of one class say beside each image whether it shows the class


@dataclass(frozen=True)
class Part:
    """One year, or one folder of images with their annotations beside them.

    Attributes:
        name: of its folder.
        annotations, images: its folders.
        lists: split to the list of its images; None where it has all of them.
    """

    name: str
    annotations: Path
    images: Path
    lists: dict[str, Path | None]


@dataclass
class VocSplit(SplitFiles):
    """The files of one split, in the order of its lists.

    Attributes:
        items: image file and its XML file, the latter empty where there is none.
        others: the XML files of all other splits.
    """

    items: list[tuple[str, str]] = field(default_factory=list)
    others: list[tuple[str]] = field(default_factory=list)


def recognize(root: Path) -> str:
    """Why ``root`` is laid out as Pascal VOC; a folder with a ``data.yaml`` or ``labels`` is not."""
    others = ("data.yaml", "data.yml", "labels")
    if not root.is_dir() or any((root / name).exists() for name in others):
        return ""
    if years := _years(root):
        return f"it has '{years[0].annotations.relative_to(root)}' with XML files"
    if folders := _beside(root):
        return f"it has XML files beside the images in {', '.join(repr(part.name) for part in folders)}"
    return ""


def splits(root: Path) -> list[str]:
    """The splits, without the lists of single classes and without what two others make up."""
    return usual_order(_plain_splits(_parts(root)))


def find_split(root: Path, split: str) -> VocSplit:
    """The files of ``split``: of every year that has it, or of one as ``VOC2012/train``."""
    parts = _parts(root)
    by_split: dict[str, list[Part]] = {}
    for part in parts:
        for name in part.lists:
            by_split.setdefault(name, []).append(part)
            if len(parts) > 1 and part.lists != {name: None}:
                by_split.setdefault(f"{part.name}/{name}", []).append(part)
    if split not in by_split:
        shown = {name: by_split[name] for name in [*_plain_splits(parts), *(n for n in by_split if "/" in n)]}
        lists = parts[0].annotations.parent / "ImageSets" / "Main" if parts else root
        name = chosen(root, split, shown, str(lists / f"{split}.txt"))
    else:
        name = split
    result, wanted = VocSplit(depends=_listed(root, parts)), by_split[name]
    short = name.rsplit("/", 1)[-1] if name not in wanted[0].lists else name
    if len(parts) > 1 and any(part.lists[short] for part in wanted):
        result.notes.append(f"the split '{split}' is of {', '.join(part.name for part in wanted)}")
    for part in parts:
        _gather(part, short if part in wanted else None, result)
    if not result.items:
        where = " and ".join(str(part.lists[short] or part.images) for part in wanted)
        missing = [f"{path}: {what}" for path, what in result.findings.first.get("no image", [])[:3]]
        what = f"{where}: the split '{name}' has no images; expected an image's name a line"
        raise UserError([what, *missing])
    return result


def _listed(root: Path, parts: list[Part]) -> list[str]:
    """The folders in which a new year, list or split would be found."""
    sets = [part.annotations.parent / "ImageSets" for part in parts]
    folders = [root, root / "VOCdevkit", *sets, *(folder / "Main" for folder in sets)]
    return [os.fspath(folder) for folder in dict.fromkeys(folders) if folder.is_dir()]


def _parts(root: Path) -> list[Part]:
    return _years(root) or _beside(root)


def _years(root: Path) -> list[Part]:
    """``root`` itself if it is laid out as VOC, or those in it or in its ``VOCdevkit``, by name."""
    for folders in ([root], subfolders(root / "VOCdevkit"), subfolders(root)):
        if years := [year for folder in folders if (year := _year(folder)) is not None]:
            return years
    return []


def _year(folder: Path) -> Part | None:
    annotations = next((folder / name for name in _ANNOTATIONS if (folder / name).is_dir()), None)
    images = next((folder / name for name in _IMAGES if (folder / name).is_dir()), None)
    sets = folder / "ImageSets"
    if annotations is None or (images is None and not sets.is_dir()):
        return None
    if not sets.is_dir() and not _has_xml(annotations):  # COCO's folders may be called the same
        return None
    lists: dict[str, Path | None] = {}
    for listing in (sets / "Main", sets):
        if not lists:
            lists = {file.stem: file for file in sorted(listing.glob("*.txt"))}
    return Part(folder.name, annotations, images or folder / "JPEGImages", lists or {"train": None})


def _beside(root: Path) -> list[Part]:
    """Folders in which annotations lie beside images: those in ``root``, each a split, or else itself."""
    parts = [
        Part(folder.name, folder, folder, {folder.name: None})
        for folder in subfolders(root)
        if _has_both(folder)
    ]
    return parts or ([Part(root.name, root, root, {"train": None})] if _has_both(root) else [])


def _has_xml(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.lower().endswith(".xml") for entry in entries)
    except OSError:
        return False


def _has_both(folder: Path) -> bool:
    if not _has_xml(folder):
        return False
    with os.scandir(folder) as entries:
        return any(is_image(entry.name) for entry in entries)


def _plain_splits(parts: list[Part]) -> list[str]:
    """Without VOC2012's sixty lists of single classes, and ``trainval`` where its halves are there."""
    names = dict.fromkeys(name for part in parts for name in part.lists)
    joint = {"trainval"} if {"train", "val"} <= names.keys() else set()
    return [
        name for name in names if name not in joint and name.rpartition("_")[2] not in names.keys() - {name}
    ]


def _gather(part: Part, wanted: str | None, result: VocSplit) -> None:
    """Add one part's images of the split ``wanted``, and what its other lists name."""
    annotated = FolderNames(os.fspath(part.annotations), {".xml"})
    images = FolderNames(os.fspath(part.images), EXTENSIONS)
    result.depends += dict.fromkeys(
        os.fspath(folder) for folder in (part.annotations, part.images, *filter(None, part.lists.values()))
    )
    known = annotated.files.keys() | images.files.keys()
    used: dict[str, None] = {}
    if wanted is not None:
        file = part.lists[wanted]
        if file is None and wanted == "train" and len(part.lists) == 1:
            result.notes.append(f"{part.images}: there are no lists, so all images are 'train'")
        for number, name in _names(file, known) if file else enumerate(sorted(images.files), 1):
            _add(name, f"{file}:{number}", used, (images, annotated), result)
    others = {
        composed(name)
        for file in part.lists.values()
        for _, name in (_names(file, known) if file else enumerate(annotated.files))
    }
    result.others += [(xml,) for name in sorted(others - used.keys()) if (xml := annotated.with_stem(name))]
    if wanted is not None:
        have = others | {composed(name) for name in images.files}
        for name in sorted(annotated.files):
            if composed(name) not in have or (part.lists[wanted] is None and not images.with_stem(name)):
                result.findings.add("label without image", f"{annotated.folder}/{annotated.files[name]}")


def _add(
    name: str, where: str, used: dict[str, None], files: tuple[FolderNames, FolderNames], result: VocSplit
) -> None:
    """Add one image of a list, once."""
    images, annotated = files
    if composed(name) in used:
        result.findings.add("listed twice", where, f"'{printable(name)}'")
        return
    used[composed(name)] = None
    if image := images.with_stem(name):
        result.items.append((image, annotated.with_stem(name)))
        return
    folder = Path(images.folder).name
    endings = ", ".join(sorted(EXTENSIONS))
    problem = f"'{printable(name)}' has no file in '{folder}'; expected one that ends in {endings}"
    result.findings.add("no image", where, problem)


def _names(file: Path, known: set[str]) -> Iterator[tuple[int, str]]:
    """Line numbers and image names of one list; a flag beside a name and an image's ending are no part."""
    for number, line in enumerate(read_text(file, "one image name a line").splitlines(), 1):
        name = line.strip()
        words = name.rsplit(None, 1)
        if name not in known and len(words) == 2 and words[1] in _FLAGS:
            name = words[0]
        if name not in known and is_image(name):
            name = name[: name.rindex(".")]
        if name:
            yield number, name
