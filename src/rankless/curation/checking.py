"""Check a data set's annotations, classes and images, and find leaks between its splits.

A leak is an image that is byte for byte the same in several splits. Scores on images that were used for
training are too high. Nearly identical images may also be leaks, for example resized copies, but they may
just be consecutive camera frames. They are therefore reported, but do not make the check fail.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankless.curation.data_set import DataSet, folder_beside, open_data_set
from rankless.curation.facts import refuse_too_little
from rankless.curation.near_duplicates import Fingerprint, Thumbnails, fingerprint, near_pairs
from rankless.curation.progress import thread_map
from rankless.data.datasets.class_choice import Classes
from rankless.data.datasets.class_matching import further_classes, match_classes
from rankless.data.datasets.open_split import examine, without_boxes
from rankless.data.formats.splits import VAL_FRACTION, is_for_training
from rankless.data.images.image_file import Values
from rankless.data.index.annotations import Annotations
from rankless.data.index.findings import KINDS, OF_RANGE, Findings
from rankless.errors import UserError, counted, listed
from rankless.files.remote import is_remote
from rankless.recipe.schema import Data

LEAK, NEAR_LEAK, TWIN = "same in two splits", "nearly same in two splits", "same image twice"


@dataclass
class Checked:
    """The result of a check. ``findings``, ``unreadable`` and ``leaked`` have one entry per split."""

    data: DataSet
    findings: dict[str, Findings]
    between: Findings
    """Findings that concern several splits."""
    unreadable: dict[str, set[int]]
    """Indices of images that cannot be decoded or have an invalid header."""
    leaked: dict[str, set[int]] = field(default_factory=dict)
    """Indices of images that a later split also contains."""
    quick: bool = False
    """Whether the images were neither decoded nor compared."""
    classes: list[str] = field(default_factory=list)
    """Error messages about class mismatches between splits."""
    missing: list[str] = field(default_factory=list)
    """Error messages about default splits that are missing or have no boxes."""
    undivided: str = ""
    """A note on the missing validation split if ``rankless train ROOT`` would create one."""
    lacking: list[str] = field(default_factory=list)
    """Notes on splits without images of some classes of the first split, if images have classes."""

    @property
    def ok(self) -> bool:
        """Whether no finding makes the check fail."""
        return not self.wrong

    @property
    def wrong(self) -> int:
        """Number of findings that make the check fail."""
        every = (*self.findings.values(), self.between)
        counted = sum(count for found in every for kind, count in found.counts.items() if fails(kind))
        return counted + len(self.classes) + len(self.missing)

    def too_many_unreadable(self, split: str) -> bool:
        """Return whether more images are unreadable than the default ``data.max_bad`` allows."""
        bad = self.findings[split].counts.get("unreadable image", 0)
        return bad > Data().max_bad * len(self.data.splits[split])

    def notes(self, split: str) -> list[str]:
        """Return notes on how the split was read, for example on ignored files."""
        return list(self.data.splits[split].about[1:])  # without the first sentence, "read as …"

    def as_json(self) -> dict[str, Any]:
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
            "undivided": self.undivided,
            "lacking": self.lacking,
        }


def _lacking(data: DataSet) -> Iterator[str]:
    names = [name for part in data.parts.values() if not part.has_boxes for name in part.class_names]
    every = list(dict.fromkeys(names))
    for split, part in data.parts.items():
        used = {part.class_names[label] for label in np.unique(part.labels).tolist()}
        without = [name for name in every if name not in used]
        if without and not part.has_boxes:
            some = f"{len(without):,} of the {counted(len(every), 'class', 'classes')}"
            yield f"'{split}' has no images of {some}: {listed(without)}"


def disagreements(data: DataSet) -> list[str]:
    """Return error messages about class mismatches between splits.

    A model has the classes of ``train`` or, if there is no such split, of the first split. The other splits
    must not have additional classes, but their order and spelling may differ.
    """
    parts = data.parts
    first = "train" if "train" in parts else next(iter(parts))
    names = parts[first].class_names
    problems = []
    if not parts[first].has_boxes and len(names) < 2:
        problems.append(f"'{first}' has only one class ({listed(names)}); expected at least two")
    for name, part in parts.items():
        if part.has_boxes != parts[first].has_boxes:
            boxed, classified = (first, name) if parts[first].has_boxes else (name, first)
            problems.append(f"'{boxed}' has boxes, but '{classified}' has one class per image")
            continue
        used = part.class_names
        if not part.has_boxes:
            used = tuple(part.class_names[label] for label in np.unique(part.labels).tolist())
        strange = [label for label in used if label not in names]
        if strange and not _all_match(used, names):
            problems.append(further_classes(data.root, first, name, strange))
    return problems


def _missing(data: DataSet, format: str, classes: Classes) -> list[str]:
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


def _undivided(data: DataSet) -> str:
    """Return a note if the only split is a training split that can be divided, otherwise an empty string."""
    (name, whole), *others = data.splits.items()
    if others or not is_for_training(name) or is_remote(data.root):
        return ""
    try:
        refuse_too_little(data.root, whole)
    except UserError:
        return ""
    if without_boxes(data.root, name, whole):
        return ""
    root = shlex.quote(data.root)
    return (
        f"no split 'val': `rankless train {root}` and `rankless new {root}` create it from '{name}'; "
        f"for other recipes, run `rankless data split {root} --val {VAL_FRACTION:g} --out "
        f"{shlex.quote(str(folder_beside(data.root, 'split')))}`"
    )


def _all_match(classes: Sequence[str], among: Sequence[str]) -> bool:
    try:
        match_classes(classes, among, (), "")
    except UserError:
        return False
    return True


def fails(kind: str) -> bool:
    """Return whether findings of this kind make the check fail."""
    return KINDS[kind].outcome != "reported" or kind == LEAK


def check(
    root: str,
    format: str = "auto",
    splits: Sequence[str] = (),
    *,
    classes: Classes = "auto",
    quick: bool = False,
    values: Values = "full",
) -> Checked:
    """Check a data set; see :func:`open_data_set` for the arguments.

    With ``quick``, only image headers are read, and images are not compared. ``values`` is the value of
    ``data.range`` for training.
    """
    data = open_data_set(root, format, splits, classes=classes, examined=True, rescan=True)
    findings: dict[str, Findings] = {}
    unreadable: dict[str, set[int]] = {}
    for name, whole in data.splits.items():
        findings[name] = whole.findings.without(OF_RANGE if values != "full" else ())
        unreadable[name] = {int(n) for n in (whole.sizes.min(1, initial=1) <= 0).nonzero()[0]}
    made = Checked(data, findings, Findings(), unreadable, quick=quick, classes=disagreements(data))
    made.lacking = [*_lacking(data)]
    if not splits and (missing := _missing(data, format, classes)):
        made.undivided = _undivided(data)
        made.missing = [] if made.undivided else missing
    if not quick:
        _decode_and_compare(made)
    return made


@dataclass(frozen=True)
class _Place:
    split: str
    annotations: Annotations
    index: int

    @property
    def path(self) -> str:
        return self.annotations.path(self.index)


def _decode_and_compare(made: Checked) -> None:
    parts = made.data.parts
    places = [
        _Place(name, whole, index) for name, whole in made.data.splits.items() for index in range(len(whole))
    ]

    def decode(place: _Place) -> Fingerprint:
        if place.index in made.unreadable[place.split]:  # the invalid header is already reported
            return Fingerprint()
        near = place.split in parts and len(parts) > 1
        return fingerprint(place.annotations, place.index, near=near, decode=True)

    equal: defaultdict[bytes, list[_Place]] = defaultdict(list)
    compared: list[tuple[_Place, Thumbnails]] = []
    for place, seen in zip(places, thread_map(decode, places, "decoding images"), strict=True):
        if seen.error is not None:
            made.findings[place.split].add("unreadable image", seen.error.path, seen.error.reason)
            made.unreadable[place.split].add(place.index)
        elif seen.digest and place.split in parts:
            if seen.thumbnail is not None and not equal[seen.digest]:  # one of identical images is enough
                compared.append((place, seen.thumbnail))
            equal[seen.digest].append(place)
    for group in equal.values():
        if len(group) > 1:
            _report(made, group)
    _report_near(made, compared)


def _report(made: Checked, group: Sequence[_Place]) -> None:
    """Report identical images as leaks between splits or as duplicates within a split."""
    order = list(made.data.parts)
    last = max(order.index(place.split) for place in group)
    firsts: dict[str, _Place] = {}
    for place in group:
        if firsts.setdefault(place.split, place) is not place:
            made.findings[place.split].add(TWIN, place.path, f"as {firsts[place.split].path}")
        if order.index(place.split) < last:
            made.leaked.setdefault(place.split, set()).add(place.index)
    if len(firsts) > 1:
        made.between.add(LEAK, " = ".join(f"'{name}' {one.path}" for name, one in firsts.items()))


def _report_near(made: Checked, compared: Sequence[tuple[_Place, Thumbnails]]) -> None:
    splits = [place.split for place, _ in compared]
    if len(set(splits)) < 2:
        return
    equal: defaultdict[bytes, list[int]] = defaultdict(list)  # identical thumbnails are compared only once
    for number, (_, small) in enumerate(compared):
        equal[small.tobytes()].append(number)
    groups = list(equal.values())
    firsts: list[dict[str, int]] = [{splits[n]: n for n in reversed(group)} for group in groups]
    nearest = [dict(own) for own in firsts]  # the first nearly identical image of each split
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
        pair_ = compared[first][0], compared[number][0]
        made.between.add(NEAR_LEAK, " ≈ ".join(f"'{place.split}' {place.path}" for place in pair_))
