"""Divide a data set into splits, reproducibly.

The split of an image depends only on the seed and the image's name, so adding images does not move other
images. With ``stratify``, the proportions of the classes are about the same in every split, and an image's
split depends on all images. Identical and nearly identical images stay together, because duplicates in
several splits would inflate the scores.
"""

from __future__ import annotations

import json
import os
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
    join_splits,
    left_out,
    must_be_outside,
    names_below,
    open_data_set,
)
from rankless.curation.near_duplicates import connected, find_duplicates
from rankless.data.datasets.class_choice import Classes
from rankless.data.formats.registry import write, written_as
from rankless.data.formats.writing import ImageFiles
from rankless.data.index.annotations import Annotations, subset
from rankless.errors import UserError, counted, printable
from rankless.files.work_folder import new_folder, refuse_existing
from rankless.randomness import key

Counts = NDArray[np.int64]
_CLOSE = 0.01
"""Maximum deviation from a requested fraction that is not reported."""


@dataclass(frozen=True)
class Divided:
    """The new splits of a data set, the requested fraction of each, and notes.

    The notes concern groups, duplicates, and annotations that were left out or changed.
    """

    data: DataSet
    out: Path
    splits: dict[str, Annotations]
    wanted: dict[str, float]
    notes: list[str]

    @property
    def to(self) -> str:
        """The format that was written."""
        return written_as(self.data.format, self.splits)

    def counts(self) -> dict[str, list[int]]:
        """Return the number of boxes, or of images for classification, per class in each split."""
        classes = len(next(iter(self.splits.values())).class_names)
        return {
            name: np.bincount(np.asarray(each.labels), minlength=classes).tolist()
            for name, each in self.splits.items()
        }

    def as_json(self) -> dict[str, Any]:
        splits = {
            name: {
                "images": len(each),
                "wanted": self.wanted[name],
                "classes": dict(zip(each.class_names, counts, strict=True)),
            }
            for (name, each), counts in zip(self.splits.items(), self.counts().values(), strict=True)
        }
        return {
            "out": str(self.out),
            "from": self.data.format,
            "to": self.to,
            "splits": splits,
            "notes": self.notes,
        }


MARK = ".rankless-division"
"""Name of the file in a divided data set that records its origin."""


def real_folder(root: str) -> str:
    """Return the folder of a data set, without links."""
    path = Path(os.path.realpath(Path(root).expanduser()))
    return str(path if path.is_dir() else path.parent)


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
    """Divide a data set into ``train``, ``val`` and ``test``, and write it in the same format.

    Args:
        out: new folder, which must not exist or must be empty.
        val, test: fractions of the images; a split with fraction 0 is not written.
        group: a regular expression for paths relative to the data set's folder. Images stay together if its
            first group (or, without a group, the whole match) is the same text.
        near: whether to keep nearly identical images together as well.
    """
    wanted = _fractions(val, test)
    try:
        expression = None if group is None else re.compile(group)
    except re.error as error:
        raise UserError(f"--group is '{group}', which is not a valid regular expression: {error}") from error
    must_be_outside(root, out)
    refuse_existing(out)
    data = open_data_set(root, format, splits, classes=classes)
    whole = join_splits(list(data.parts.values()))
    names = names_below(root, whole)
    units, notes = _units(names, expression.search if expression else None, group)
    duplicates = find_duplicates(whole, near=near)
    units = _merge(units, duplicates.groups, len(whole))
    notes += duplicates.notes()
    hashed = [key(seed, "split", unit) / 2**128 for unit in units]
    made = _divided(whole, list(units.values()), hashed, wanted, stratify=stratify)
    notes += _shares(made, wanted, max(map(len, units.values())), stratify=stratify)
    with new_folder(out) as folder:
        notes += write(data.format, folder, made, ImageFiles("link" if link else "copy"))
        notes += left_out(data.parts)
        origin = {"root": real_folder(root), "digest": whole.digest()}
        (folder / MARK).write_text(json.dumps(origin) + "\n", encoding="utf-8")
    return Divided(data, out, made, wanted, notes)


def _divided(
    whole: Annotations,
    members: Sequence[Sequence[int]],
    hashed: Sequence[float],
    wanted: Mapping[str, float],
    *,
    stratify: bool,
) -> dict[str, Annotations]:
    """Return the new splits, given the images in each unit and the unit's hash in [0, 1)."""
    if stratify:
        counts, sizes = _label_counts(whole, members), np.array([len(each) for each in members])
        order = np.argsort(np.array(hashed), kind="stable")
        split_of = np.empty(len(members), np.int64)
        split_of[order] = stratified(counts[order], sizes[order], list(wanted.values()))
    else:
        split_of = by_hash(hashed, list(wanted.values()))
    made: dict[str, Annotations] = {}
    parts = f", which form {len(members)} groups" if len(members) < len(whole) else ""
    for number, name in enumerate(wanted):
        images = sorted(
            index for unit in np.flatnonzero(split_of == number).tolist() for index in members[unit]
        )
        if not images:
            raise UserError(
                f"the split '{name}' would get none of the {counted(len(whole), 'image')}{parts}; use a "
                f"larger fraction than {wanted[name]:g}, or add images"
            )
        made[name] = subset(whole, images)
    return made


def by_hash(hashed: Sequence[float], fractions: Sequence[float]) -> Counts:
    """Return the index of the split for each hash in [0, 1).

    The lowest hashes go to the second split, the next lowest to the third, and the rest to the first. A test
    split that is added later therefore takes images only from ``train``, and enlarging ``val`` keeps the
    images that it has.
    """
    bounds = np.cumsum(np.array(fractions[1:], np.float64))
    return np.asarray((np.searchsorted(bounds, np.asarray(hashed), side="right") + 1) % len(fractions))


def stratified(counts: Counts, sizes: Counts, fractions: Sequence[float]) -> Counts:
    """Assign examples to splits by iterative stratification (Sechidis et al., 2011, algorithm 1).

    Examples with the rarest remaining label are assigned first, each to the split that most needs this label.
    Ties go to the split that needs the most images. An example may be a group of images.

    Args:
        counts: number of images with each label in each example, (N, C). The order of examples breaks ties.
        sizes: number of images in each example, (N,).
        fractions: fraction of each split, (S,); they add up to 1.

    Returns:
        The index of each example's split, (N,).
    """
    fractions_ = np.asarray(fractions, np.float64)
    wanted = fractions_ * sizes.sum()  # (S,)
    wanted_of = fractions_[:, None] * counts.sum(0)  # (S, C)
    where = np.full(len(counts), -1, np.int64)
    left = (counts > 0).sum(0)  # number of unassigned examples with each label, (C,)

    def deal(example: int, demand: NDArray[np.float64]) -> None:
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
        f"--{name} is {value:g}: expected a fraction from 0 to 1, such as 0.2"
        for name, value in (("val", val), ("test", test))
        if not 0 <= value < 1
    ]
    if not problems and val + test == 0:
        problems.append("--val and --test are 0: expected at least one fraction above 0, such as --val 0.2")
    if not problems and val + test >= 1:
        problems.append(f"--val {val:g} and --test {test:g} leave no training images: expected a sum below 1")
    if problems:
        raise UserError(problems)
    fractions = {"train": 1 - val - test, "val": val, "test": test}
    return {name: fraction for name, fraction in fractions.items() if fraction}


def _units(names: Sequence[str], search: Any, group: str | None) -> tuple[dict[str, list[int]], list[str]]:
    """Return a mapping from each unit (a group or a single image) to its images, and notes."""
    units: defaultdict[str, list[int]] = defaultdict(list)
    alone, text = 0, ""
    for number, name in enumerate(names):
        match = search(name) if search else None
        if search and match is None:
            alone += 1
        text = name if match is None else (match[1] if match.re.groups else match[0]) or ""
        # The prefix keeps an image without a group out of a group of the same name.
        units[f"group {text}" if match else text].append(number)
    if search is None:
        return dict(units), []
    if alone == len(names):
        raise UserError(
            f"--group '{group}': the pattern matches none of the {len(names)} image names, such as "
            f"'{names[0]}'"
        )
    if len(units) == 1 and len(names) > 1:
        raise UserError(
            f"--group '{group}': the pattern puts all {len(names)} images, such as '{printable(names[0])}', "
            f"into one group, '{printable(text)}'; use a pattern whose first group (…) differs between "
            "images that may be separated"
        )
    notes = [f"{counted(len(names) - alone, 'image')} in {counted(len(units) - alone, 'group')}"]
    if alone:
        one, many = "image name does not match --group", "image names do not match --group"
        notes.append(f"{counted(alone, one, many)}")
    return dict(units), notes


def _merge(
    units: Mapping[str, list[int]], groups: Iterable[Sequence[int]], count: int
) -> dict[str, list[int]]:
    """Merge units that share duplicates. A merged unit keeps the alphabetically first name."""
    parts = [*units.values(), *groups]
    lowest = connected(count, ((members[0], other) for members in parts for other in members))
    merged: dict[int, tuple[str, list[int]]] = {}
    for name, members in sorted(units.items()):
        merged.setdefault(lowest[members[0]], (name, []))[1].extend(members)
    return {name: sorted(members) for name, members in merged.values()}


def _shares(
    made: Mapping[str, Annotations], wanted: Mapping[str, float], largest: int, *, stratify: bool
) -> list[str]:
    """Return a list with a note on splits that are far from their requested fraction, if any."""
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
        why = "each image's split depends only on its name, so new images do not move other images"
    advice = "" if stratify else "; use --stratify for the closest possible fractions of every class"
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
    """Return each split's fraction of each class, given the counts in each split."""
    totals = np.sum([list(each) for each in counts.values()], 0).clip(1)
    return {name: (np.asarray(each) / totals).tolist() for name, each in counts.items()}
