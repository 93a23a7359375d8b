"""Read the Oxford-IIIT Pet data set (images of 37 breeds and two lists) as stored by torchvision.

See Parkhi et al., "Cats and Dogs", 2012. A line such as ``Abyssinian_100 1 1 1`` contains the image name
without extension, the breed number (from 1), the species, and the breed number within the species.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rankless.data.formats.folders import FolderNames, read_text
from rankless.data.images.image_file import EXTENSIONS
from rankless.data.index.raw import Raw, RawBuilder
from rankless.data.index.scan import with_sizes
from rankless.errors import UserError, printable
from rankless.recipe.schema import IN_RECIPE

TITLE = "Oxford-IIIT pets"
LAYOUT = "'oxford-iiit-pet' with 'images' and 'annotations/trainval.txt', as torchvision stores it"
_FOLDER = "oxford-iiit-pet"
_MEANT = {"train": "trainval", "val": "test"}
"""The two lists serve as ``train`` and ``val``, because there is no validation list."""


def recognize(root: Path) -> str:
    top = _top(root)
    return f"it has '{top.name}/annotations/trainval.txt'" if top else ""


def splits(root: Path) -> list[str]:
    return ["trainval", "test"]


def read(root: Path, split: str) -> Raw:
    top = _top(root)
    if top is None:
        raise UserError(f"{root}: no Oxford-IIIT Pet data set found; expected {LAYOUT}")
    wanted = _MEANT.get(split, split)
    lists = {name: top / "annotations" / f"{name}.txt" for name in splits(root)}
    if wanted not in lists:
        raise UserError(
            f"{root}: no split '{split}'; expected 'trainval', 'train', 'test' or 'val'; choose one "
            f"of these{IN_RECIPE}"
        )
    names = _breeds(lists)
    labels = {name: label for label, name in enumerate(names)}
    images = FolderNames(os.fspath(top / "images"), EXTENSIONS)
    made, file = RawBuilder(), lists[wanted]
    for line, image, breed, _ in _rows(file):
        path = images.with_stem(image)
        if path:
            made.add_label(made.add_image(path, f"{file}"), labels[breed], line)
        else:
            made.findings.add("no image", f"{file}:{line}", f"'{printable(image)}' has no file in 'images'")
    if not made.paths:
        raise UserError(f"{file}: none of the listed images exists in {top / 'images'}; add the images")
    about = [f"'{split}' refers to the list '{wanted}'"] if wanted != split else []
    folders = [top, top / "annotations", top / "images"]
    depends = [*map(str, folders), *map(str, lists.values())]
    return with_sizes(made.raw(boxed=False, names=names, depends=depends, about=about))


def _top(root: Path) -> Path | None:
    there = [folder for folder in (root, root / _FOLDER) if folder.name == _FOLDER]
    return next((folder for folder in there if (folder / "annotations" / "trainval.txt").is_file()), None)


def _breeds(lists: Mapping[str, Path]) -> list[str]:
    numbers: dict[str, int] = {}
    for file in lists.values():
        for line, image, breed, number in _rows(file) if file.is_file() else ():
            if numbers.setdefault(breed, number) != number:
                raise UserError(
                    f"{file}:{line}: '{printable(image)}' has the breed '{printable(breed)}' with the number "
                    f"{number}, but an earlier line has the number {numbers[breed]}; expected one number per "
                    "breed; correct the lists"
                )
    return sorted(numbers, key=lambda breed: (numbers[breed], breed))


def _rows(file: Path) -> list[tuple[int, str, str, int]]:
    """Return the line number, image name, breed and breed number of each line, without comments."""
    found = []
    for line, text in enumerate(read_text(file, "lines such as 'Abyssinian_100 1 1 1'").splitlines(), 1):
        words = text.split()
        if not words or text.startswith("#"):
            continue
        breed = words[0].rpartition("_")[0]
        if len(words) < 2 or not breed or not words[1].isdecimal():
            raise UserError(
                f"{file}:{line}: '{printable(text)}'; expected a line such as 'Abyssinian_100 1 1 1'"
            )
        found.append((line, words[0], breed.replace("_", " ").title(), int(words[1])))
    return found
