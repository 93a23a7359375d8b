"""Divide images into splits reproducibly.

An image's split depends only on the seed and the image's name, so images that are added later do not move
other images. With ``stratify``, every split gets the same fraction of each class, and an image's split
depends on all images. Images of one group stay together, as do identical or nearly identical images, which
would inflate the scores if they were in two splits.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankless.curation.data_set import (
    DataSet,
    must_be_outside,
    names_below,
    open_data_set,
    together,
)
from rankless.curation.near_duplicates import find_alike, joined
from rankless.data.datasets.class_choice import Classes
from rankless.data.formats.registry import write
from rankless.data.formats.writing import ImageFiles
from rankless.data.index.annotations import Annotations, subset
from rankless.errors import UserError, counted, printable
from rankless.files.work_folder import new_folder, refuse_existing
from rankless.randomness import key

Counts = NDArray[np.int64]
_CLOSE = 0.01
"""The maximum deviation from the requested fractions that is not reported."""


@dataclass(frozen=True)
class Divided:
    """A divided data set: its folder and splits, the requested fraction of each split, and notes."""

    data: DataSet
    out: Path
    splits: dict[str, Annotations]
    wanted: dict[str, float]
    notes: list[str]

    def counts(self) -> dict[str, list[int]]:
        """Return the number of boxes, or of images for classification, of each class in each split."""
        classes = len(next(iter(self.splits.values())).class_names)
        return {
            name: np.bincount(np.asarray(each.labels), minlength=classes).tolist()
            for name, each in self.splits.items()
        }

    def as_json(self) -> dict[str, Any]:
        """Return the division as JSON-compatible data."""
        splits = {
            name: {
                "images": len(each),
                "wanted": self.wanted[name],
                "classes": dict(zip(each.class_names, counts, strict=True)),
            }
            for (name, each), counts in zip(self.splits.items(), self.counts().values(), strict=True)
        }
        return {"out": str(self.out), "splits": splits, "notes": self.notes}


def split(
    root: str,
    out: Path,
    format: str = "auto",
    *,
    splits: Sequence[str] = (),
    classes: Classes = "auto",
    val: float = 0.2,
    test: float = 0.0,
    stratify: bool = False,
    group: str | None = None,
    near: bool = True,
    seed: int = 0,
    link: bool = False,
) -> Divided:
    """Divide the images of a data set into ``train``, ``val`` and ``test``, and write them in its format.

    See :func:`open_data_set` for the other arguments.

    Args:
        out: the new folder, which must not exist or must be empty.
        val, test: the fractions of the images; a split with the fraction 0 is not written.
        stratify: whether to give every split about the same fraction of each class.
        group: a regular expression. Images stay together if their paths below the data set's folder have the
            same text in its first group, or in the whole match if it has no group.
        near: whether to keep nearly identical images together as well.
        seed: the seed of the division.
        link: whether to link images instead of copying them.
    """
    wanted = _fractions(val, test)
    try:
        expression = None if group is None else re.compile(group)
    except re.error as error:
        raise UserError(f"--group is '{group}': expected a regular expression, but {error}") from error
    must_be_outside(root, out)
    refuse_existing(out)
    data = open_data_set(root, format, splits, classes=classes)
    whole = together(list(data.parts.values()))
    names = names_below(root, whole)
    units, notes = _units(names, expression.search if expression else None, group)
    alike = find_alike(whole, near=near)
    units = _merged(units, alike.groups, len(whole))
    notes += alike.notes()
    hashed = [key(seed, "split", unit) / 2**128 for unit in units]
    made = _divided(whole, list(units.values()), hashed, wanted, stratify=stratify)
    notes += _shares(made, wanted, max(map(len, units.values())), stratify=stratify)
    with new_folder(out) as folder:
        notes += write(data.format, folder, made, ImageFiles("link" if link else "copy"))
    return Divided(data, out, made, wanted, notes)


def _divided(
    whole: Annotations,
    members: Sequence[Sequence[int]],
    hashed: Sequence[float],
    wanted: Mapping[str, float],
    *,
    stratify: bool,
) -> dict[str, Annotations]:
    """Return the new splits, given the images of each unit and its hash from 0 to 1."""
    if stratify:
        counts, sizes = _label_counts(whole, members), np.array([len(each) for each in members])
        order = np.argsort(np.array(hashed), kind="stable")
        split_of = np.empty(len(members), np.int64)
        split_of[order] = stratified(counts[order], sizes[order], list(wanted.values()))
    else:
        split_of = by_hash(hashed, list(wanted.values()))
    made: dict[str, Annotations] = {}
    parts = f", of which some stay together, so there are {len(members)} parts to divide"
    parts = parts if len(members) < len(whole) else ""
    for number, name in enumerate(wanted):
        images = sorted(
            index for unit in np.flatnonzero(split_of == number).tolist() for index in members[unit]
        )
        if not images:
            raise UserError(
                f"the split '{name}' would have none of the {counted(len(whole), 'image')}{parts}; give it a "
                f"larger fraction than {wanted[name]:g}, or more images"
            )
        made[name] = subset(whole, images)
    return made


def by_hash(hashed: Sequence[float], fractions: Sequence[float]) -> Counts:
    """Return the split's index for each number in ``hashed``, which are in [0, 1).

    The lowest numbers go to the second split, the next to the third, and the rest to the first. A test split
    that is added later therefore takes images only from ``train``, and a larger ``val`` keeps its images.
    """
    bounds = np.cumsum(np.array(fractions[1:], np.float64))
    return np.asarray((np.searchsorted(bounds, np.asarray(hashed), side="right") + 1) % len(fractions))


def stratified(counts: Counts, sizes: Counts, fractions: Sequence[float]) -> Counts:
    """Divide examples by iterative stratification (Sechidis, Tsoumakas and Vlahavas, 2011, algorithm 1).

    Examples with the rarest remaining label are assigned first, each to the split that still needs that label
    most. Ties go to the split that needs the most examples. If an example is a group of images, each image
    counts.

    Args:
        counts: the number of each example's images with each label, (N, C); the order breaks ties.
        sizes: the number of images of each example, (N,).
        fractions: the fraction of each split, (S,); the fractions add up to 1.

    Returns:
        The index of the split of each example, (N,).
    """
    fractions_ = np.asarray(fractions, np.float64)
    wanted = fractions_ * sizes.sum()  # (S,)
    wanted_of = fractions_[:, None] * counts.sum(0)  # (S, C)
    where = np.full(len(counts), -1, np.int64)
    left = (counts > 0).sum(0)  # examples of each label, (C,)

    def deal(example: int, demand: NDArray[np.float64]) -> None:
        """Assign an example to the split with the highest ``demand``, (S,)."""
        best = np.flatnonzero(demand >= demand.max() - 1e-9)
        chosen = int(best[np.argmax(wanted[best])])
        where[example] = chosen
        wanted[chosen] -= sizes[example]
        wanted_of[chosen] -= counts[example]
        left[:] -= counts[example] > 0

    while (left > 0).any():
        label = int(np.argmin(np.where(left > 0, left, np.iinfo(np.int64).max)))
        for example in np.flatnonzero((counts[:, label] > 0) & (where < 0)).tolist():
            deal(example, wanted_of[:, label])
    for example in np.flatnonzero(where < 0).tolist():  # examples without any label
        deal(example, wanted)
    return where


def _fractions(val: float, test: float) -> dict[str, float]:
    problems = [
        f"--{name} is {value:g}: expected a fraction from 0 to 1, as in 0.2"
        for name, value in (("val", val), ("test", test))
        if not 0 <= value < 1
    ]
    if not problems and val + test == 0:
        problems.append("--val and --test are 0: expected a fraction for one of them, as in --val 0.2")
    if not problems and val + test >= 1:
        problems.append(
            f"--val {val:g} and --test {test:g} leave nothing to train on: expected less than 1 together"
        )
    if problems:
        raise UserError(problems)
    fractions = {"train": 1 - val - test, "val": val, "test": test}
    return {name: fraction for name, fraction in fractions.items() if fraction}


def _units(names: Sequence[str], search: Any, group: str | None) -> tuple[dict[str, list[int]], list[str]]:
    """Return the units to divide, which are groups of images or single images, and notes."""
    units: defaultdict[str, list[int]] = defaultdict(list)
    alone, text = 0, ""
    for number, name in enumerate(names):
        match = search(name) if search else None
        if search and match is None:
            alone += 1
        text = name if match is None else (match[1] if match.re.groups else match[0]) or ""
        # An image outside the groups must not join a group with its name.
        units[f"group {text}" if match else text].append(number)
    if search is None:
        return dict(units), []
    if alone == len(names):
        raise UserError(f"--group '{group}' matches none of the {len(names)} names, such as '{names[0]}'")
    if len(units) == 1 and len(names) > 1:
        raise UserError(
            f"--group '{group}': the pattern puts all {len(names)} images into one group, "
            f"'{printable(text)}', which cannot be divided; give a pattern whose first (…) differs between "
            f"images that may be separated; a name is, for example, '{printable(names[0])}'"
        )
    notes = [f"{counted(len(units) - alone, 'group')} of {counted(len(names) - alone, 'image')}"]
    if alone:
        one, many = "name does not match --group and stands", "names do not match --group and stand"
        notes.append(f"{counted(alone, one, many)} alone")
    return dict(units), notes


def _merged(
    units: Mapping[str, list[int]], groups: Iterable[Sequence[int]], count: int
) -> dict[str, list[int]]:
    """Merge the units whose images share a group of duplicates, under the first of their names.

    The split of an image without duplicates therefore depends only on its name.
    """
    parts = [*units.values(), *groups]
    lowest = joined(count, ((members[0], other) for members in parts for other in members))
    merged: dict[int, tuple[str, list[int]]] = {}
    for name, members in sorted(units.items()):
        merged.setdefault(lowest[members[0]], (name, []))[1].extend(members)
    return {name: sorted(members) for name, members in merged.values()}


def _shares(
    made: Mapping[str, Annotations], wanted: Mapping[str, float], largest: int, *, stratify: bool
) -> list[str]:
    """Return a list with a sentence about the splits that missed their fraction; empty if all are close."""
    total = sum(map(len, made.values()))
    missed = [
        f"'{name}' has {len(each) / total:.1%} of the images, not {wanted[name]:.1%}"
        for name, each in made.items()
        if name != "train" and abs(len(each) - wanted[name] * total) >= max(1, _CLOSE * total)
    ]
    if not missed:
        return []
    if largest > max(1, _CLOSE * total):
        why = f"images stay together in groups of up to {largest}"
    else:
        why = "each image's split depends only on its name, so that new images do not move others"
    advice = "" if stratify else "; --stratify comes as close as possible, for every class"
    return [f"{' and '.join(missed)}: {why}{advice}"]


def _label_counts(whole: Annotations, members: Sequence[Sequence[int]]) -> Counts:
    """Return the number of images of each class in each unit, (N, C)."""
    unit_of = np.empty(len(whole), np.int64)
    for unit, images in enumerate(members):
        unit_of[list(images)] = unit
    classes = len(whole.class_names)
    image = np.repeat(np.arange(len(whole)), np.diff(whole.offsets))
    pairs = np.unique(image * classes + np.asarray(whole.labels))
    flat = unit_of[pairs // classes] * classes + pairs % classes
    return np.bincount(flat, minlength=len(members) * classes).reshape(len(members), classes)


def fractions_of(counts: Mapping[str, Sequence[int]]) -> dict[str, list[float]]:
    """Return each split's fraction of each class."""
    totals = np.sum([list(each) for each in counts.values()], 0).clip(1)
    return {name: (np.asarray(each) / totals).tolist() for name, each in counts.items()}
