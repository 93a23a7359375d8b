"""Data sets that are built in. Each is a package in this folder, and its name is a value of ``data.root``.

To other code, a built-in data set is a data format without files: no file outside its package names it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from rankless.data.datasets.annotated import ClassificationImages, DetectionImages


class BuiltIn(Protocol):
    """The interface of a built-in data set's package: a data format with images in the place of files."""

    TITLE: str
    SIZE: tuple[int, int]
    """(H, W) of the images with boxes, in pixels, where no network gives its input size."""
    splits: Callable[..., list[str]]
    detection: Callable[[str, int, int, tuple[int, int]], DetectionImages]
    """Open images with boxes, given the split, the number of images, their seed (0 for evaluations) and their
    (H, W)."""
    classification: Callable[[str], ClassificationImages]


def names() -> list[str]:
    """Return the names of the built-in data sets."""
    return [module.name for module in pkgutil.iter_modules(__path__)]


def is_built_in(root: str) -> bool:
    """Check whether ``root`` is a built-in data set, even if a folder has the same name."""
    return root in names()


def named(root: str) -> BuiltIn | None:
    """Return the package of a built-in data set, or None if ``root`` is other data."""
    return cast(BuiltIn, importlib.import_module(f"{__name__}.{root}")) if is_built_in(root) else None
