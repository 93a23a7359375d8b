"""Names of splits: the order they are listed in, and which one is meant."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from rankless.errors import UserError, printable
from rankless.recipe.data import IN_RECIPE

_ALIKE = (("train", "training"), ("val", "valid", "validation", "dev"), ("test", "testing"))
_YEAR = re.compile(r"(?<=[a-z])[_-]?(19|20)\d\d$", re.IGNORECASE)


def usual_order(names: Iterable[str]) -> list[str]:
    """Training, validation and test first, the others by name."""
    first = {name: rank for rank, name in enumerate(name for group in _ALIKE for name in group)}
    return sorted(names, key=lambda name: (first.get(name.casefold(), len(first)), name))


def without_year(names: Iterable[str]) -> dict[str, str]:
    """Short name to name: ``train2017`` is called ``train`` where only one name comes to that."""
    names = list(names)
    short = [_YEAR.sub("", name) for name in names]
    return {
        cut if short.count(cut) == 1 and (cut == name or cut not in names) else name: name
        for cut, name in zip(short, names, strict=True)
    }


def known_as(wanted: str, existing: Collection[str]) -> str:
    """The one name in ``existing`` that ``wanted`` means; ``wanted`` itself if none or several do."""
    group = next((group for group in _ALIKE if wanted.casefold() in group), ())
    alike = [name for name in existing if name.casefold() in group or _YEAR.sub("", name) == wanted]
    return alike[0] if wanted not in existing and len(alike) == 1 else wanted


def chosen(root: Path, wanted: str, existing: Collection[str], expected: str) -> str:
    """The name in ``existing`` that ``wanted`` means: itself, or another word for it (``val``, ``valid``).

    A file that is the only one is what ``train`` means, whatever it is called.

    Args:
        root: the data's folder or file.
        wanted: the split's name.
        existing: the splits there are.
        expected: where one was looked for, as the end of "expected …".

    Raises:
        UserError: no such split.
    """
    meant = known_as(wanted, existing)
    if meant in existing:
        return meant
    if len(existing) == 1 and wanted == "train" and root.is_file():
        return next(iter(existing))
    if not existing:
        raise UserError(f"{root}: no split; expected {expected}")
    listed = ", ".join(f"'{printable(name)}'" for name in usual_order(existing))
    raise UserError(
        f"{root}: no split '{wanted}'; expected {'one of ' * (len(existing) > 1)}{listed}; give one of these"
        f"{IN_RECIPE}, or add {expected}"
    )


def as_file_name(split: str) -> str:
    """A split's name fit for a file or a folder: ``VOC2012/train`` is ``VOC2012_train``."""
    return split.replace("/", "_")
