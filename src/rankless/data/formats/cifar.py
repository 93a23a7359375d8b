"""CIFAR-10 and CIFAR-100 in their Python version, as torchvision has them: images of 32 × 32 in a few files.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. Nothing is unpickled, see
:mod:`rankless.data.formats.cifar_pickle`; an image is a byte range of its file, three planes of 32 × 32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankless.data.formats.cifar_pickle import Named, Run, contents
from rankless.data.index.byte_ranges import CIFAR_BYTES, CIFAR_ENDING, CIFAR_SIDE, path_in
from rankless.data.index.raw import Raw, RawBuilder
from rankless.errors import UserError

TITLE = "CIFAR"
LAYOUT = "'cifar-10-batches-py' or 'cifar-100-python', as torchvision has them"


class _Kind(NamedTuple):
    """One of the two: its folder, its files by split, and the keys of labels and of their names."""

    folder: str
    files: dict[str, tuple[str, ...]]
    labels: str
    meta: tuple[str, str]


_KINDS = (
    _Kind(
        "cifar-10-batches-py",
        {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
        "labels",
        ("batches.meta", "label_names"),
    ),
    _Kind(
        "cifar-100-python",
        {"train": ("train",), "test": ("test",)},
        "fine_labels",
        ("meta", "fine_label_names"),
    ),
)


def recognize(root: Path) -> str:
    """Why ``root`` has, or is, the folder of one of them."""
    kind, folder = _found(root)
    return f"it has '{folder.name}/{kind.meta[0]}'" if kind and folder else ""


def splits(root: Path) -> list[str]:
    """There are two."""
    return ["train", "test"]


def read(root: Path, split: str) -> Raw:
    """Read one split; there is no ``val``, so that is ``test``."""
    kind, folder = _found(root)
    if kind is None or folder is None:
        raise UserError(f"{root}: no files of CIFAR; expected {LAYOUT}")
    wanted = "test" if split == "val" else split
    if wanted not in kind.files:
        raise UserError(f"{root}: no split '{split}'; expected one of 'train', 'test'; 'val' means 'test'")
    meta = folder / kind.meta[0]
    names = contents(meta).get(kind.meta[1])
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"{meta}: no list '{kind.meta[1]}'; expected the class names; get the file again")
    made, ranges = RawBuilder(), list[tuple[int, int]]()
    files = [folder / name for name in kind.files[wanted]]
    for file in files:
        labels, start = _images(file, kind.labels, len(names))
        for number, label in enumerate(labels):
            path = path_in(str(file), f"{number:05}{CIFAR_ENDING}")
            made.add_label(made.add_image(path, str(file)), label)
            ranges.append((start + number * CIFAR_BYTES, CIFAR_BYTES))
    about = ["'val' is CIFAR's test split: there is no other"] if split == "val" else []
    return made.raw(
        boxed=False,
        names=names,
        sizes=np.full((len(ranges), 2), CIFAR_SIDE, np.int32),
        byte_ranges=np.array(ranges, np.int64).reshape(-1, 2),
        depends=[str(folder), *map(str, (meta, *files))],
        about=about,
    )


def _found(root: Path) -> tuple[_Kind | None, Path | None]:
    there = [
        (kind, folder)
        for kind in _KINDS
        for folder in (root, root / kind.folder)
        if folder.name == kind.folder and (folder / kind.meta[0]).is_file()
    ]
    if len(there) > 1:
        raise UserError(
            f"{root}: both '{_KINDS[0].folder}' and '{_KINDS[1].folder}' are there; expected one; give "
            f"data.root={there[0][1]}, or the other"
        )
    return there[0] if there else (None, None)


def _images(file: Path, key: str, classes: int) -> tuple[list[int], int]:
    """The labels in a file, and where its images begin."""
    found = contents(file)
    labels, data = found.get(key), found.get("data")
    state: Any = data.state if isinstance(data, Named) else None
    pixels = state[-1] if isinstance(state, tuple) and state else data
    fine = isinstance(labels, list) and all(type(one) is int and 0 <= one < classes for one in labels)
    if not isinstance(labels, list) or not fine or not isinstance(pixels, Run):
        raise UserError(
            f"{file}: no '{key}' from 0 to {classes - 1} and 'data'; expected a file of CIFAR; get it again"
        )
    if pixels.length != len(labels) * CIFAR_BYTES:
        raise UserError(
            f"{file}: {pixels.length:,} bytes of pixels for {len(labels):,} labels; expected "
            f"{len(labels) * CIFAR_BYTES:,}; get the file again"
        )
    return labels, pixels.offset
