"""Pictures in folders that name their class.

Either every split is a folder of class folders (``ROOT/train/CAT/1.jpg``, ``ROOT/val/CAT/2.jpg``), or the
root holds the class folders themselves (``ROOT/CAT/1.jpg``) and a fifth of each class is set aside for
validation. Which pictures these are is a function of the files' names alone.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rankless.data import pictures
from rankless.errors import UserError
from rankless.randomness import key

VAL_SHARE = 0.2
"""Share of each class that is for validation where the folders make no splits."""
_USUAL = ("train", "val")


@dataclass(frozen=True)
class ImageFolder:
    """One split.

    Attributes:
        class_names: a label is a position in this list.
        paths: picture files, (N,), class by class, each class in the order of its files' names.
        labels: int64, (N,).
        notes: what was divided or left out, as sentences with counts.
    """

    class_names: tuple[str, ...]
    paths: list[str]
    labels: NDArray[np.int64]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.paths)

    def source(self, index: int) -> str:
        """The file of picture ``index``."""
        return self.paths[index]

    def image(self, index: int) -> Tensor:
        """Picture ``index``, uint8 RGB (3, H, W).

        Raises:
            UnreadablePicture: the file is missing or damaged.
        """
        return pictures.read(self.paths[index])

    def label(self, index: int) -> int:
        """The class of picture ``index``."""
        return int(self.labels[index])


@dataclass
class _Found:
    """What lies in one folder of class folders."""

    classes: dict[str, dict[str, str]] = field(default_factory=dict)  # class -> name in its folder -> path
    odd: dict[str, list[str]] = field(default_factory=dict)  # why it was left out -> paths

    def leave_out(self, reason: str, path: str) -> None:
        self.odd.setdefault(reason, []).append(path)


def read_image_folder(root: str, split: str, class_names: Sequence[str] | None = None) -> ImageFolder:
    """One split of pictures in class folders.

    Names are compared and sorted in Unicode's composed form (NFC), so that a copy on another file system is
    the same data. Symbolic links are followed; a folder is entered once, however many links lead to it.

    Args:
        root: a folder that holds ``split``, or the class folders.
        split: a folder in ``root``; ``train`` or ``val`` where the root holds the class folders.
        class_names: of the model; None takes those found, sorted.

    Raises:
        UserError: nothing there, no such split, no picture, fewer than two classes, or a class that
            ``class_names`` does not have.
    """
    place = Path(root).expanduser()
    if not place.is_dir():
        what = "a file" if place.exists() else "no such folder"
        raise UserError(
            f"The data '{root}': {what} at {place.absolute()}, expected a folder of class folders, or "
            "'digits' for the built-in data."
        )
    divided = not any(_holds_folders(place / name) for name in (*_USUAL, split))
    if divided and split not in _USUAL:
        raise UserError(
            f"{place} has no split '{split}': its own folders are taken as classes and divided into 'train' "
            "and 'val'; name one of these (data.train, data.val), or make a folder "
            f"'{split}' that holds a folder per class."
        )
    if not divided and not _holds_folders(place / split):
        there = ", ".join(f"'{name}'" for name in _folders(place) if _holds_folders(place / name))
        raise UserError(
            f"{place} has no split '{split}'; it has {there}. Name one of these in the recipe (data.train, "
            f"data.val), or make a folder '{split}' that holds a folder per class."
        )
    found = _class_folders(place if divided else place / split)
    names = _classes(found, place if divided else place / split, class_names)
    notes = _told(found, class_names)
    if divided:
        share = {name: _share_of(files, split) for name, files in found.classes.items()}
        count, total = (sum(map(len, each.values())) for each in (share, found.classes))
        notes.append(
            f"{place} has no folders 'train' and 'val': {count} of its {total} pictures are '{split}', "
            "divided class by class by a hash of the file's name"
        )
        found.classes = share
    rows = [
        (path, label) for label, name in enumerate(names) for path in found.classes.get(name, {}).values()
    ]
    labels = np.array([label for _, label in rows], np.int64)
    return ImageFolder(names, [path for path, _ in rows], labels, tuple(notes))


def _folders(place: Path) -> list[str]:
    """Names of the folders in ``place`` that are not hidden, sorted."""
    return sorted(name.name for name in place.iterdir() if name.is_dir() and not name.name.startswith("."))


def _holds_folders(place: Path) -> bool:
    return place.is_dir() and bool(_folders(place))


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _class_folders(place: Path) -> _Found:
    """Every class folder in ``place`` with its pictures, sorted."""
    found = _Found()
    for entry in sorted(place.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            files = found.classes.setdefault(_composed(entry.name), {})
            files |= dict(_walk(str(entry), "", found, set()))
        elif entry.is_dir():
            found.leave_out("hidden folders", str(entry))
        elif pictures.is_picture(entry):
            found.leave_out("pictures outside the class folders", str(entry))
    found.classes = {name: dict(sorted(found.classes[name].items())) for name in sorted(found.classes)}
    return found


def _walk(folder: str, inside: str, found: _Found, entered: set[str]) -> Iterator[tuple[str, str]]:
    """(name inside the class folder, path) of every picture below ``folder``, each real folder once."""
    real = os.path.realpath(folder)
    if real in entered:
        return
    entered.add(real)
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        found.leave_out("folders that cannot be opened", folder)
        return
    for entry in entries:
        name = f"{inside}{_composed(entry.name)}"
        if entry.name.startswith("."):
            found.leave_out("hidden files and folders", entry.path)
        elif entry.is_dir():
            yield from _walk(entry.path, f"{name}/", found, entered)
        elif not pictures.is_picture(entry.name):
            found.leave_out("files that are no pictures by their endings", entry.path)
        elif reason := _unusable(entry):
            found.leave_out(reason, entry.path)
        else:
            yield name, entry.path


def _unusable(entry: os.DirEntry[str]) -> str:
    """Why a file with a picture's ending can be none; its content is not looked at: it would take long."""
    try:
        status = entry.stat()
    except OSError:
        return "links that lead nowhere"
    if not stat.S_ISREG(status.st_mode):
        return "pictures that are no files"
    return "" if status.st_size else "empty files"


def _classes(found: _Found, place: Path, known: Sequence[str] | None) -> tuple[str, ...]:
    """The class names; those without a picture are none."""
    names = [name for name, files in found.classes.items() if files]
    if not names:
        endings = ", ".join(sorted(pictures.EXTENSIONS))
        raise UserError(
            f"{place}: no pictures; looked in {len(found.classes)} class folders for files that end in "
            f"{endings}."
        )
    if odd := [name for name in names if name.encode(errors="replace").decode() != name]:
        raise UserError(
            f"{place}: the name of the class folder {os.fsencode(name)!r} is not UTF-8; rename it."
            for name in odd
        )
    if known is None:
        if len(names) < 2:
            raise UserError(
                f"{place}: only one class folder has pictures ('{names[0]}'), expected two or more; "
                "make a folder per class (pictures with boxes are for task: detect)."
            )
        return tuple(names)
    if strangers := [name for name in names if name not in known]:
        raise UserError(
            f"{place} has classes that the model does not have: {_listed(strangers)}; expected "
            f"{_listed(known)}. Give the splits the same class folders, or train anew."
        )
    return tuple(known)


def _share_of(files: dict[str, str], split: str) -> dict[str, str]:
    """The pictures of one class that are ``split``: its first fifth by a hash of their names, or the rest.

    At least one is for validation, unless there is only one.
    """
    by_hash = sorted(files, key=lambda name: (key(0, "image folder", os.fsencode(name).hex()), name))
    cut = max(round(VAL_SHARE * len(files)), 1) if len(files) > 1 else 0
    chosen = set(by_hash[:cut] if split == "val" else by_hash[cut:])
    return {name: path for name, path in files.items() if name in chosen}


def _told(found: _Found, known: Sequence[str] | None) -> list[str]:
    """What was left out, as sentences with counts."""
    notes = []
    if empty := [name for name, files in found.classes.items() if not files]:
        notes.append(f"{len(empty)} folders hold no pictures and are no classes: {_listed(empty)}")
    if missing := [name for name in known or () if not found.classes.get(name)]:
        notes.append(f"{len(missing)} of {len(known or ())} classes have no pictures: {_listed(missing)}")
    for reason, paths in sorted(found.odd.items()):
        notes.append(f"{len(paths)} {reason} were left out; the first: {min(paths)}")
    return notes


def _listed(names: Sequence[str]) -> str:
    """The first few of the names, and how many more there are."""
    shown = ", ".join(f"'{name}'" for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown
