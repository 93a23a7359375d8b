"""Argument types of the Python API that accept one value or several, as paths or strings."""

from __future__ import annotations

import os
from collections.abc import Sequence

Text = str | os.PathLike[str]
Overrides = str | Sequence[str]
"""One or several recipe overrides, each written as ``key=value``."""


def several(given: Text | Sequence[Text | int]) -> list[str]:
    """Convert one value or several to a list of strings.

    Examples:
        >>> several("optim.lr=0.1"), several([Path("a.jpg"), "b.jpg", 3])
        (['optim.lr=0.1'], ['a.jpg', 'b.jpg', '3'])
    """
    return [os.fspath(given)] if isinstance(given, str | os.PathLike) else [str(one) for one in given]


def classes_of(given: str | Sequence[str | int]) -> tuple[str | int, ...]:
    """Convert a class name, or several names or ids, to a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)
