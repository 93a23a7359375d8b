"""Images in folders that name their class.

Either every split is a folder of class folders (``ROOT/train/CAT/1.jpg``, ``ROOT/val/CAT/2.jpg``), or the
root holds the class folders themselves (``ROOT/CAT/1.jpg``) and a fifth of each class is set aside for
validation. Which images these are is a function of the files' names alone.

Names are compared and sorted in Unicode's composed form (NFC), so that a copy on another file system is the
same data. Symbolic links are followed; a folder is entered once, however many links lead to it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rankless.data.formats.class_folders import Found, class_folders
from rankless.data.formats.splits import known_as
from rankless.data.formats.writing import ImageFiles, file_names
from rankless.data.images import image_file
from rankless.data.index.annotations import Annotations
from rankless.data.index.raw import Raw
from rankless.data.index.scan import file_sizes
from rankless.errors import UserError, listed
from rankless.randomness import key

TITLE = "class folders"
LAYOUT = "a folder per class, or a folder per split ('train', 'val') that holds a folder per class"

VAL_SHARE = 0.2
"""Share of each class that is for validation where the folders make no splits."""
_USUAL = ("train", "val")
_SPLITS = (*_USUAL, "valid", "validation", "test")
_OF_DETECTION = frozenset({"images", "labels", "annotations", "jpegimages", "imagesets"})
_ENOUGH = 1000  # folders in which an image is looked for


def recognize(root: Path) -> str:
    """Why ``root`` holds class folders; empty if not.

    Images beside files of boxes, in folders named as detection's formats name them, are no classes.
    """
    if not root.is_dir():
        return ""
    splits = [name for name in _SPLITS if _holds_folders(root / name)]
    for place in (root, *(root / name for name in splits)):
        if any(name.casefold() in _OF_DETECTION for name in _folders(place)):
            return ""
    below = itertools.chain.from_iterable(os.walk(root / name) for name in _folders(root))
    if not any(
        image_file.is_image(file) for _, _, files in itertools.islice(below, _ENOUGH) for file in files
    ):
        return ""
    if splits:
        return f"its folders {listed(splits)} hold folders with images"
    return f"its folders hold images: {listed(_folders(root))}"


def splits(root: Path) -> list[str]:
    """The folders of class folders; ``train`` and ``val`` where the root holds the class folders."""
    if not any(_holds_folders(root / name) for name in _SPLITS):
        return list(_USUAL)
    known = {name: place for place, name in enumerate(_SPLITS)}
    found = [name for name in _folders(root) if _holds_folders(root / name)]
    return sorted(found, key=lambda name: (known.get(name, len(known)), name))


def read(root: Path, split: str) -> Raw:
    """One split, class by class, each class in the order of its files' names.

    Its class names are those of the folders that hold images, sorted; another split may have others.

    Args:
        root: a folder that holds ``split``, or the class folders.
        split: a folder in ``root``, or another word for it; ``train`` or ``val`` where the root holds the
            class folders.

    Raises:
        UserError: not a folder, no such split, or no image.
    """
    if not root.is_dir():
        raise UserError(f"The data '{root}' is a file, expected {LAYOUT}.")
    divided = not any(_holds_folders(root / name) for name in (*_USUAL, split))
    if divided and split not in _USUAL:
        raise UserError(
            f"{root} has no split '{split}': its own folders are taken as classes and divided into 'train' "
            "and 'val'; name one of these (data.train, data.val), or make a folder "
            f"'{split}' that holds a folder per class."
        )
    found_splits = [] if divided else [name for name in _folders(root) if _holds_folders(root / name)]
    split = known_as(split, found_splits)
    if not divided and split not in found_splits:
        there = ", ".join(f"'{name}'" for name in found_splits)
        raise UserError(
            f"{root} has no split '{split}'; it has {there}. Name one of these in the recipe (data.train, "
            f"data.val), or make a folder '{split}' that holds a folder per class."
        )
    place = root if divided else root / split
    found = class_folders(place)
    names = _classes(found, place)
    about = _told(found)
    if divided:
        share = {name: _share_of(files, split) for name, files in found.classes.items()}
        count, total = (sum(map(len, each.values())) for each in (share, found.classes))
        about.append(
            f"{root} has no folders 'train' and 'val': {count} of its {total} images are '{split}', "
            "divided class by class by a hash of the file's name"
        )
        found.classes = share
    depends = [os.fspath(root), *(os.fspath(root / name) for name in _USUAL if (root / name).exists())]
    return _raw(found, names, list(dict.fromkeys([*depends, *found.entered])), about)


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write every split as a folder of class folders.

    Raises:
        UserError: the images have boxes, or a class name can be no folder's.
    """
    odd = {name for each in splits.values() for name in each.class_names if not _can_be_a_folder(name)}
    faults = [f"The class name '{name}' cannot be the name of a folder: rename it." for name in sorted(odd)]
    if any(each.has_boxes for each in splits.values()):
        faults.append("Images with boxes cannot be written as class folders: choose a detection format.")
    if faults:
        raise UserError(faults)
    for split, found in splits.items():
        for index, name in enumerate(file_names(found)):
            label = found.class_names[int(found.labels[index])]
            files.put(found, index, out / split / label / name)
    return []


def _can_be_a_folder(name: str) -> bool:
    return bool(name) and not name.startswith(".") and not set(name) & {"/", "\0"}


def _folders(place: Path) -> list[str]:
    """Names of the folders in ``place`` that are not hidden, sorted."""
    return sorted(name.name for name in place.iterdir() if name.is_dir() and not name.name.startswith("."))


def _holds_folders(place: Path) -> bool:
    return place.is_dir() and bool(_folders(place))


def _classes(found: Found, place: Path) -> list[str]:
    """The class names; those without an image are none."""
    names = [name for name, files in found.classes.items() if files]
    if not names:
        endings = ", ".join(sorted(image_file.EXTENSIONS))
        raise UserError(
            f"{place}: no images; looked in {len(found.classes)} class folders for files that end in "
            f"{endings}."
        )
    if odd := [name for name in names if name.encode(errors="replace").decode() != name]:
        raise UserError(
            f"{place}: the name of the class folder {os.fsencode(name)!r} is not UTF-8; rename it."
            for name in odd
        )
    return names


def _share_of(files: dict[str, str], split: str) -> dict[str, str]:
    """The images of one class that are ``split``: its first fifth by a hash of their names, or the rest.

    At least one is for validation, unless there is only one.
    """
    by_hash = sorted(files, key=lambda name: (key(0, "image folder", os.fsencode(name).hex()), name))
    cut = max(round(VAL_SHARE * len(files)), 1) if len(files) > 1 else 0
    chosen = set(by_hash[:cut] if split == "val" else by_hash[cut:])
    return {name: path for name, path in files.items() if name in chosen}


def _told(found: Found) -> list[str]:
    """What was left out, as sentences with counts."""
    told = []
    if empty := [name for name, files in found.classes.items() if not files]:
        told.append(f"{len(empty)} folders hold no images and are no classes: {listed(empty)}")
    for reason, paths in sorted(found.odd.items()):
        told.append(f"{len(paths)} {reason} were left out; the first: {min(paths)}")
    return told


def _raw(found: Found, names: Sequence[str], depends: list[str], about: list[str]) -> Raw:
    labels = np.repeat(np.arange(len(names)), [len(found.classes[name]) for name in names])
    paths = [path for name in names for path in found.classes[name].values()]
    sizes, findings = file_sizes(paths)
    return Raw(
        paths=paths,
        sizes=sizes,
        stated=np.zeros_like(sizes),
        places=paths,
        image=np.arange(len(paths)),
        boxes=None,
        labels=labels,
        flags=np.zeros(len(paths), np.uint8),
        areas=np.full(len(paths), np.nan, np.float32),
        lines=np.zeros(len(paths), np.int64),
        names=names,
        depends=depends,
        findings=findings,
        about=about,
    )
