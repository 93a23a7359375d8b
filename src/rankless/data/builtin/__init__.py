"""Data sets that are built in. Each is a package in this folder, and its name is a value of ``data.root``.

To other code, a built-in data set is a data format without files: no file outside its package names it.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from rankless.printing import warn

if TYPE_CHECKING:
    from rankless.data.datasets.annotated import ClassificationImages, DetectionImages


class BuiltIn(Protocol):
    """The interface of a built-in data set's package. ``TITLE`` and ``splits`` are those of a data format."""

    TITLE: str

    def splits(self, root: object = None) -> list[str]: ...

    def detection(self, split: str, images: int, seed: int) -> DetectionImages:
        """Return images with boxes. ``images`` is their number; images of evaluations have the seed 0."""
        ...

    def classification(self, split: str) -> ClassificationImages: ...


def names() -> list[str]:
    """Return the names of the built-in data sets."""
    return [module.name for module in pkgutil.iter_modules(__path__)]


def is_built_in(root: str) -> bool:
    """Check whether ``root`` is a built-in data set, even if a folder has the same name."""
    return root in names()


def note_folder(root: str) -> None:
    """Warn if a file or folder has the same name as the built-in data set ``root``."""
    if is_built_in(root) and Path(root).exists():
        warn(f"'{root}' is the built-in data; to use the folder or file of this name, write ./{root}")


def named(root: str) -> BuiltIn | None:
    """Return the package of a built-in data set, or None if ``root`` is other data."""
    return cast(BuiltIn, importlib.import_module(f"{__name__}.{root}")) if is_built_in(root) else None
