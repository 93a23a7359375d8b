"""The fixed tree as it is defined, by recursion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def tree(values: Sequence[Any], add: Callable[[Any, Any], Any], width: int = 0) -> Any:
    """The sum over the leaves ``values``: that of the halves of the next power of two."""
    width = width or 1 << (len(values) - 1).bit_length()
    if width == 1:
        return values[0]
    left, rest = tree(values[: width // 2], add, width // 2), values[width // 2 :]
    return add(left, tree(rest, add, width // 2)) if rest else left
