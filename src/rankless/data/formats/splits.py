"""Sort and match the names of splits, and divide data without splits."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable
from pathlib import Path

from rankless.errors import UserError, printable
from rankless.randomness import key
from rankless.recipe.schema import IN_RECIPE

_ALIKE = (("train", "training"), ("val", "valid", "validation", "dev"), ("test", "testing"))
_YEAR = re.compile(r"(?<=[a-z])[_-]?(19|20)\d\d$|^(19|20)\d\d[_-]?(?=[a-z])", re.IGNORECASE)
VAL_FRACTION = 0.2  # fraction of the images used for validation if a data set has no validation split

WORDS = tuple(word for group in _ALIKE for word in group)  # usual names of splits


def usual_order(names: Iterable[str]) -> list[str]:
    """Sort names of splits: training, validation and test splits first, then other splits by name."""
    first = {name: rank for rank, name in enumerate(WORDS)}
    return sorted(names, key=lambda name: (first.get(name.casefold(), len(first)), name))


def without_year(names: Iterable[str]) -> dict[str, str]:
    """Map names without the year to full names, such as ``train`` to ``train2017``.

    The year is kept if a name would not be unique without it.
    """
    names = list(names)
    short = [_YEAR.sub("", name) for name in names]
    return {
        cut if short.count(cut) == 1 and (cut == name or cut not in names) else name: name
        for cut, name in zip(short, names, strict=True)
    }


def known_as(wanted: str, existing: Collection[str]) -> str:
    """Return the existing split that ``wanted`` refers to, or ``wanted`` if there is no unique match.

    Without a validation split, ``val`` matches a test split. Without a training split, ``train`` matches
    ``default``, which CVAT writes for tasks without subsets.
    """
    group = next((group for group in _ALIKE if wanted.casefold() in group), ())
    short = {name: _YEAR.sub("", name) for name in existing}
    alike = [name for name in existing if short[name].casefold() in group or short[name] == wanted]
    if not alike and group == _ALIKE[1] and len(existing) > 1:
        alike = [name for name in existing if is_for_tests(name)]
    if not alike and group == _ALIKE[0] and "default" in existing:
        return "default"
    return alike[0] if wanted not in existing and len(alike) == 1 else wanted


def is_for_tests(name: str) -> bool:
    """Return whether ``name`` is a usual name of a test split."""
    return _YEAR.sub("", name).casefold() in _ALIKE[2]


def is_for_training(name: str) -> bool:
    """Return whether ``name`` is not a usual name of a validation or test split."""
    return not any(_YEAR.sub("", name).casefold() in group for group in _ALIKE[1:])


def is_for_validation(name: str) -> bool:
    """Return whether ``name`` is a usual name of a validation split."""
    return name.casefold() in _ALIKE[1]


def is_usual(name: str) -> bool:
    """Return whether ``name`` is a usual name of a split, such as ``train``, ``trainval`` or ``2007_val``."""
    return _YEAR.sub("", name).casefold() in ("trainval", *WORDS)


def set_aside(names: Collection[str], what: str) -> set[str]:
    """Select a fifth of the names by their hashes, and at least one if there are two or more names.

    ``what`` is the kind of data, and is hashed together with each name.
    """
    by_hash = sorted(names, key=lambda name: (key(0, what, os.fsencode(name).hex()), name))
    return set(by_hash[: max(round(VAL_FRACTION * len(names)), 1) if len(names) > 1 else 0])


def how_to_divide(root: Path, wanted: str) -> str:
    """Return the end of a message about a missing split: how to create it, or "" for training splits."""
    if is_for_training(wanted):
        return ""
    folder = root if root.is_dir() else root.absolute().parent
    option = "--val 0.2" if wanted.casefold() in _ALIKE[1] else "--val 0.2 --test 0.1"
    command = f"rankless data split {shlex.quote(str(root))} {option}"
    return f", or divide the images with `{command} --out {shlex.quote(f'{folder}-split')}`"


def chosen(root: Path, wanted: str, existing: Collection[str], expected: str) -> str:
    """Return the existing split that ``wanted`` refers to; raise an error if there is none.

    A single file also matches ``train`` and its own name. ``expected`` is the expected location of the split.
    """
    meant = known_as(wanted, existing)
    if meant in existing:
        return meant
    if len(existing) == 1 and wanted in ("train", root.stem) and root.is_file():
        return next(iter(existing))
    if not existing:
        raise UserError(f"{root}: no split found; expected {expected}; add it, or use another data.root")
    listed = ", ".join(f"'{printable(name)}'" for name in usual_order(existing))
    raise UserError(
        f"{root}: no split '{wanted}'; expected {'one of ' * (len(existing) > 1)}{listed}; choose an "
        f"existing split{IN_RECIPE}, or add {expected}{how_to_divide(root, wanted)}"
    )


def as_file_name(split: str) -> str:
    """Convert the name of a split to a file name, such as ``VOC2012/train`` to ``VOC2012_train``."""
    return split.replace("/", "_")
