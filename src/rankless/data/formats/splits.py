"""Interpret the names of splits, their order and synonyms, and divide data that has no splits."""

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
VAL_FRACTION = 0.2
"""The fraction of images used for validation if a data set has no validation split."""


WORDS = tuple(word for group in _ALIKE for word in group)
"""The usual names of splits."""


def usual_order(names: Iterable[str]) -> list[str]:
    """Sort names of splits: training, validation and test splits first, then the others by name."""
    first = {name: rank for rank, name in enumerate(WORDS)}
    return sorted(names, key=lambda name: (first.get(name.casefold(), len(first)), name))


def without_year(names: Iterable[str]) -> dict[str, str]:
    """Return a mapping from names without the year to full names, such as ``train`` to ``train2017``.

    A name keeps its year if two names would otherwise become the same.
    """
    names = list(names)
    short = [_YEAR.sub("", name) for name in names]
    return {
        cut if short.count(cut) == 1 and (cut == name or cut not in names) else name: name
        for cut, name in zip(short, names, strict=True)
    }


def known_as(wanted: str, existing: Collection[str]) -> str:
    """Return the name in ``existing`` that ``wanted`` refers to, or ``wanted`` if none or several match.

    If there are several splits but no validation split, a test split is used instead. If there is no training
    split, ``default``, which CVAT writes for a task without subsets, is used instead.
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
    """Return whether ``name`` is a common name of a test split."""
    return _YEAR.sub("", name).casefold() in _ALIKE[2]


def is_for_training(name: str) -> bool:
    """Return whether a split may be trained on, which excludes validation and test splits."""
    return not any(_YEAR.sub("", name).casefold() in group for group in _ALIKE[1:])


def is_for_validation(name: str) -> bool:
    """Return whether ``name`` is a common name of a validation split."""
    return name.casefold() in _ALIKE[1]


def is_usual(name: str) -> bool:
    """Return whether ``name`` is a common split name such as ``train``, ``trainval`` or ``2007_val``."""
    return _YEAR.sub("", name).casefold() in ("trainval", *WORDS)


def set_aside(names: Collection[str], what: str) -> set[str]:
    """Return the first fifth of the names, ordered by a hash, and at least one if there are two or more.

    Args:
        names: the names of images; the result depends neither on their order nor on a seed.
        what: the kind of data, which is part of the hash.
    """
    by_hash = sorted(names, key=lambda name: (key(0, what, os.fsencode(name).hex()), name))
    return set(by_hash[: max(round(VAL_FRACTION * len(names)), 1) if len(names) > 1 else 0])


def how_to_divide(root: Path, wanted: str) -> str:
    """Return the end of a message with the command that makes a missing split; empty for training splits."""
    if is_for_training(wanted):
        return ""
    folder = root if root.is_dir() else root.absolute().parent
    option = "--val 0.2" if wanted.casefold() in _ALIKE[1] else "--val 0.2 --test 0.1"
    command = f"rankless data split {shlex.quote(str(root))} {option}"
    return f"; or divide its images: {command} --out {shlex.quote(f'{folder}-split')}"


def chosen(root: Path, wanted: str, existing: Collection[str], expected: str) -> str:
    """Return the name in ``existing`` that equals ``wanted`` or is a synonym, such as ``valid`` for ``val``.

    If ``root`` is the only file, ``train`` and the name of the file refer to that file.

    Args:
        root: the data's folder or file.
        wanted: the requested split.
        existing: the existing splits.
        expected: the expected location of a split, as the end of "expected …".
    """
    meant = known_as(wanted, existing)
    if meant in existing:
        return meant
    if len(existing) == 1 and wanted in ("train", root.stem) and root.is_file():
        return next(iter(existing))
    if not existing:
        raise UserError(f"{root}: no split; expected {expected}; add it, or give another data.root")
    listed = ", ".join(f"'{printable(name)}'" for name in usual_order(existing))
    raise UserError(
        f"{root}: no split '{wanted}'; expected {'one of ' * (len(existing) > 1)}{listed}; give one of these"
        f"{IN_RECIPE}, or add {expected}{how_to_divide(root, wanted)}"
    )


def as_file_name(split: str) -> str:
    """Return a split's name as a valid file name: ``VOC2012/train`` becomes ``VOC2012_train``."""
    return split.replace("/", "_")
