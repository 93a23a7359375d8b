"""Whatever is wrong with a data set: the findings of its format, images that do not decode, leaks, classes.

A leak is an image that two splits share, byte for byte: a model that has trained on what it is scored on
scores too well. An image that was saved again or resized is one too, but frames of a still camera look alike
as well: such pairs are reported, and do not make a check fail.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankless.curation.data_set import DataSet, open_data_set
from rankless.curation.near_duplicates import Thumbnails, near_pairs, thumbnail
from rankless.curation.progress import each
from rankless.data.datasets.class_choice import Classes
from rankless.data.datasets.class_matching import further_classes, match_classes
from rankless.data.datasets.open_split import examine, without_boxes
from rankless.data.images.image_file import UnreadableImage, read
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import content
from rankless.data.index.findings import KINDS, Findings
from rankless.errors import UserError, listed
from rankless.recipe.schema import Data

LEAK, NEAR_LEAK, TWIN = "same in two splits", "nearly same in two splits", "same image twice"


@dataclass
class Checked:
    """The result of a check.

    Attributes:
        data: what was checked.
        findings: of each split.
        between: of the splits among each other.
        unreadable: of each split, the numbers of the images that do not decode, or whose header is broken.
        leaked: of each split, the numbers of the images that a later split has as well.
        quick: nothing was decoded or compared.
        classes: how the splits' classes disagree, as sentences; each of them stops a training.
        missing: the splits that a training with the defaults does not find, or that have no box, as
            sentences; each of them stops it.
    """

    data: DataSet
    findings: dict[str, Findings]
    between: Findings
    unreadable: dict[str, set[int]]
    leaked: dict[str, set[int]] = field(default_factory=dict)
    quick: bool = False
    classes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; mere notes are not wrong, except a leak."""
        return not self.wrong

    @property
    def wrong(self) -> int:
        """The number of findings that are wrong."""
        every = (*self.findings.values(), self.between)
        counted = sum(count for found in every for kind, count in found.counts.items() if fails(kind))
        return counted + len(self.classes) + len(self.missing)

    def too_many_unreadable(self, split: str) -> bool:
        """Whether a training with the default ``data.max_bad`` stops for the split's unreadable images."""
        bad = self.findings[split].counts.get("unreadable image", 0)
        return bad > Data().max_bad * len(self.data.splits[split])

    def notes(self, split: str) -> list[str]:
        """Sentences about how the split was read, such as what was left out."""
        return list(self.data.splits[split].about[1:])  # the first is "read as …"

    def as_json(self) -> dict[str, Any]:
        """Return the findings for a program."""
        splits: dict[str, dict[str, Any]] = {
            name: {
                "images": len(each),
                "boxes": len(each.boxes),
                "notes": self.notes(name),
                "findings": self.findings[name].as_json(),
            }
            for name, each in self.data.splits.items()
        }
        for name, split in splits.items():
            if self.too_many_unreadable(name):
                split["findings"]["unreadable image"]["outcome"] = "stops"
        return {
            "root": self.data.root,
            "format": self.data.format,
            "ok": self.ok,
            "decoded": not self.quick,
            "splits": splits,
            "between": self.between.as_json(),
            "classes": self.classes,
            "missing": self.missing,
        }


def disagreements(data: DataSet) -> list[str]:
    """Return what of the classes stops a training on these splits, as sentences; empty if they agree.

    A model gets its classes from the training split: ``train`` or, without one, the first. No other split may
    have further classes; neither their order matters nor their spelling.
    """
    parts = data.parts
    first = "train" if "train" in parts else next(iter(parts))
    names = parts[first].class_names
    problems = []
    if not parts[first].has_boxes and len(names) < 2:
        problems.append(f"'{first}' has images of one class only ({listed(names)}); expected two or more")
    for name, part in parts.items():
        if part.has_boxes != parts[first].has_boxes:
            problems.append(f"one of '{first}' and '{name}' has boxes, the other one class for part image")
            continue
        used = part.class_names
        if not part.has_boxes:
            used = tuple(part.class_names[label] for label in np.unique(part.labels).tolist())
        strange = [label for label in used if label not in names]
        if strange and not _are_found(used, names):
            problems.append(further_classes(data.root, first, name, strange))
    return problems


def _missing(data: DataSet, format: str, classes: Classes) -> list[str]:
    """Return the errors of a training with the defaults about missing or empty splits."""
    problems: list[str] = []
    for split in (Data().train, Data().val):
        try:
            annotations = examine(data.root, split, format, classes=classes)
        except UserError as error:
            problems += error.problems
        else:
            problem = without_boxes(data.root, split, annotations)
            problems += [problem] if problem else []
    return list(dict.fromkeys(problems))


def _are_found(classes: Sequence[str], among: Sequence[str]) -> bool:
    """Whether an evaluation finds these classes among the model's."""
    try:
        match_classes(classes, among, (), "")
    except UserError:
        return False
    return True


def fails(kind: str) -> bool:
    """Whether a finding of this kind makes a check fail."""
    return KINDS[kind].outcome != "reported" or kind == LEAK


def check(
    root: str,
    format: str = "auto",
    splits: Sequence[str] = (),
    *,
    classes: Classes = "auto",
    quick: bool = False,
) -> Checked:
    """Everything that is wrong with a data set.

    Args:
        root: a folder, or a file such as a ``data.yaml``.
        format: one of :data:`rankless.data.formats.registry.NAMES`, or ``auto``.
        splits: these alone; all if empty.
        classes: those to use; see :mod:`rankless.data.datasets.class_choice`.
        quick: read only the headers of images, and compare none.
    """
    data = open_data_set(root, format, splits, classes=classes, examined=True, rescan=True)
    findings: dict[str, Findings] = {}
    unreadable: dict[str, set[int]] = {}
    for name, whole in data.splits.items():
        findings[name] = Findings()
        findings[name].update(whole.findings)
        unreadable[name] = {int(n) for n in (whole.sizes.min(1, initial=1) <= 0).nonzero()[0]}
    made = Checked(data, findings, Findings(), unreadable, quick=quick, classes=disagreements(data))
    made.missing = [] if splits else _missing(data, format, classes)
    if not quick:
        _decode_and_compare(made)
    return made


class _Look(NamedTuple):
    """The work for one image: decode it, and hash it if another has the same number of bytes.

    ``compared``: make a thumbnail, too, because there are other splits.
    """

    split: str
    annotations: Annotations
    number: int
    size: int
    hashed: bool
    compared: bool
    broken: bool


class _Seen(NamedTuple):
    error: UnreadableImage | None
    digest: bytes | None
    thumbnail: Thumbnails | None = None


def _decode_and_compare(made: Checked) -> None:
    parts = made.data.parts
    sizes = {name: _byte_counts(annotations) for name, annotations in made.data.splits.items()}
    common = Counter(size for name in parts for size in sizes[name])
    looks = [
        _Look(
            name,
            whole,
            number,
            size,
            hashed=name in parts and common[size] > 1,
            compared=name in parts and len(parts) > 1,
            broken=number in made.unreadable[name],
        )
        for name, whole in made.data.splits.items()
        for number, size in enumerate(sizes[name])
    ]
    equal: defaultdict[tuple[int, bytes], list[_Look]] = defaultdict(list)
    compared: list[tuple[_Look, Thumbnails]] = []
    for look, seen in zip(looks, each(_look_at, looks, "decoding images"), strict=True):
        if seen.error is not None:
            made.findings[look.split].add("unreadable image", seen.error.path, seen.error.reason)
            made.unreadable[look.split].add(look.number)
        same = equal[look.size, seen.digest] if seen.digest is not None else []
        if seen.thumbnail is not None and not same:  # the first of equal ones stands for all
            compared.append((look, seen.thumbnail))
        same.append(look)
    for group in equal.values():
        if len(group) > 1:
            _report(made, group)
    _report_near(made, compared)


def _look_at(look: _Look) -> _Seen:
    if look.broken:  # reported already, by its header
        return _Seen(None, None)
    try:
        data, path = content(look.annotations, look.number), look.annotations.path(look.number)
        read(io.BytesIO(data), name=path)
        small = thumbnail(data, path) if look.compared else None
    except UnreadableImage as error:
        return _Seen(error, None)
    return _Seen(None, hashlib.blake2b(data, digest_size=16).digest() if look.hashed else None, small)


def _byte_counts(annotations: Annotations) -> list[int]:
    """The bytes of each image; -1 where there is no file."""
    if len(annotations.byte_ranges):
        return [int(length) for length in annotations.byte_ranges[:, 1]]
    return [Path(path).stat().st_size if Path(path).is_file() else -1 for path in annotations.paths()]


def _report(made: Checked, group: Sequence[_Look]) -> None:
    """Images of equal bytes: in two splits they are a leak, in one they count twice."""
    order = list(made.data.parts)
    last = max(order.index(look.split) for look in group)
    firsts: dict[str, _Look] = {}
    for look in group:
        path = look.annotations.path(look.number)
        if look.split in firsts:
            other = firsts[look.split]
            made.findings[look.split].add(TWIN, path, f"as {other.annotations.path(other.number)}")
        else:
            firsts[look.split] = look
        if order.index(look.split) < last:
            made.leaked.setdefault(look.split, set()).add(look.number)
    if len(firsts) > 1:
        named = " = ".join(f"'{name}' {one.annotations.path(one.number)}" for name, one in firsts.items())
        made.between.add(LEAK, named)


def _report_near(made: Checked, compared: Sequence[tuple[_Look, Thumbnails]]) -> None:
    """Report images that are nearly the same as one before them in another split, with the first of these."""
    splits = [look.split for look, _ in compared]
    if len(set(splits)) < 2:
        return
    equal: defaultdict[bytes, list[int]] = defaultdict(list)  # empty frames, say, are compared once
    for number, (_, small) in enumerate(compared):
        equal[hashlib.blake2b(small.tobytes(), digest_size=16).digest()].append(number)
    groups = list(equal.values())
    firsts: list[dict[str, int]] = [{splits[n]: n for n in reversed(group)} for group in groups]
    nearest = [dict(own) for own in firsts]  # per split, the first that is nearly the same
    for pair in near_pairs(np.array([compared[group[0]][1] for group in groups], np.uint8)):
        for one, other in (pair, pair[::-1]):
            for split, number in firsts[other].items():
                nearest[one][split] = min(number, nearest[one].get(split, number))
    found: dict[int, int] = {}
    for group, near in zip(groups, nearest, strict=True):
        for number in group:
            first = min((n for split, n in near.items() if split != splits[number]), default=number)
            if first < number:
                found[number] = first
    for number, first in sorted(found.items()):
        looks = compared[first][0], compared[number][0]
        paths = [f"'{look.split}' {look.annotations.path(look.number)}" for look in looks]
        made.between.add(NEAR_LEAK, " ≈ ".join(paths))
