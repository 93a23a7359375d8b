"""What the writers of text formats share: numbers and names that read back equal, and what has no place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations

_BREAKS = re.compile("[\0\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
"""All that some reader takes for a line's end, and the character that no file's name can have."""


def number(value: float) -> str:
    """A number in the fewest digits that read back as the same float64."""
    return str(int(value)) if value.is_integer() else repr(value)


def plain_boxes(annotations: Annotations, split: str) -> tuple[NDArray[np.bool_], list[str]]:
    """Which boxes a format without flags and areas can hold, (T,), and sentences on what it cannot."""
    flags: Any = annotations.flags
    lost = []
    for flag, what in ((DIFFICULT, "difficult"), (CROWD, "a crowd")):
        if count := int(((flags & flag) > 0).sum()):
            lost.append(f"{split}: {count} boxes are marked {what}, which has no place here: left out")
    if count := int((~np.isnan(annotations.areas) & (flags == 0)).sum()):
        lost.append(f"{split}: the areas of {count} objects have no place here: a box's area counts instead")
    return np.asarray(flags == 0), lost


def on_one_line(names: Iterable[str]) -> Iterator[str]:
    """The names, without line breaks."""
    return (_BREAKS.sub("_", name) for name in names)


def fit_names(names: Iterable[str], *, distinct: bool) -> tuple[list[str], list[str]]:
    """Class names that can stand on a line each, and a sentence if one had to be changed.

    Args:
        names: class names.
        distinct: whether no two may be the same; the second then gets its number.
    """
    names, made, seen = list(names), [], set[str]()
    for label, name in enumerate(names):
        fit = _BREAKS.sub("_", name).strip() or "_"
        while distinct and fit in seen:
            fit = f"{fit} ({label})"
        seen.add(fit)
        made.append(fit)
    changed = [(old, new) for old, new in zip(names, made, strict=True) if old != new]
    if not changed:
        return made, []
    old, new = changed[0]
    return made, [f"{len(changed)} class names do not fit and were changed; the first: {old!r} to {new!r}"]
