"""Write corrected copies of data sets. The originals are not changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rankless.curation.checking import Checked, fails
from rankless.curation.data_set import must_be_outside
from rankless.data.formats.registry import write
from rankless.data.formats.writing import ImageFiles
from rankless.data.index.annotations import Annotations, subset
from rankless.data.index.findings import KINDS, UNKNOWN_RANGE
from rankless.errors import UserError, check_all, counted
from rankless.files.work_folder import new_folder, refuse_existing


@dataclass(frozen=True)
class Fixed:
    """The folder of the corrected copy, and a description of each change."""

    out: Path
    changes: list[str]


_LOST = "unreadable file"
BY_HAND = "repair or replace the annotation files that cannot be read"
_SET_RANGE = "set data.range in the recipe, and add --range with the same value to this command"


def remedy(checked: Checked) -> str:
    """Return advice on how to fix all errors, or an empty string if there are none."""
    wrong = {kind for found in checked.findings.values() for kind in found.counts if fails(kind)}
    stops = {kind for kind in wrong if KINDS[kind].outcome == "stops"}
    steps = ["give the splits the same classes"] if checked.classes else []
    steps += ["add the missing splits or boxes, or select only the usable splits"] if checked.missing else []
    if _LOST in wrong:
        steps.append(BY_HAND)
    if UNKNOWN_RANGE in wrong:
        steps.append(_SET_RANGE)
    beyond_copies = (_LOST, UNKNOWN_RANGE)
    rest = checked.wrong > len(checked.classes) + len(checked.missing) + sum(
        found.counts.get(kind, 0) for found in checked.findings.values() for kind in beyond_copies
    )
    if rest and stops - {_LOST}:
        steps.append(
            "correct the findings that stop training, or use --fix --drop-invalid to write a copy without "
            "them"
        )
    elif rest:
        steps.append(f"use --fix to write a copy without {'the other errors' if steps else 'them'}")
    if rest and wrong.intersection(beyond_copies):
        steps[-1] = f"then {steps[-1]}"
    return "; ".join(steps)


def _refuse_unknown_range(checked: Checked) -> None:
    if count := sum(found.counts.get(UNKNOWN_RANGE, 0) for found in checked.findings.values()):
        raise UserError(
            f"{checked.data.root}: {KINDS[UNKNOWN_RANGE].counted(count)}, which a copy would have, too; "
            f"{_SET_RANGE}"
        )


def refuse_misread(checked: Checked, *, drop_invalid: bool) -> None:
    """Raise an error for findings that may mean that the data was misread.

    Dropping misread annotations would turn objects into background. ``drop_invalid`` allows this for boxes.
    """
    found = {
        f"{name}: {kind}: {count:,}" + (f"; the first: {first[0]}" if first else ""): kind
        for name, findings in checked.findings.items()
        for kind, count, first in findings
        if KINDS[kind].outcome == "stops" and (kind == _LOST or not drop_invalid)
    }
    if not found:
        return
    is_lost, has_others = _LOST in found.values(), {*found.values()} != {_LOST}
    advice = ["nothing was written, because these findings may mean that the data was misread"]
    if is_lost:
        advice.append(BY_HAND if has_others else f"{BY_HAND} (--drop-invalid drops boxes, not files)")
    if has_others:
        advice.append(
            f"fix {'the other findings' if is_lost else 'them'} by hand, or add --drop-invalid to drop these "
            "boxes (their objects become background)"
        )
    raise UserError([*found, "; ".join(advice)])


def fix(checked: Checked, out: Path, *, drop_invalid: bool = False, link: bool = False) -> Fixed:
    """Write a copy of the data set, in the same format, without the entries that make the check fail.

    Invalid boxes are dropped or clipped as in training, and unreadable images are dropped. If splits share an
    image, only the last of them keeps it, so validation and test splits stay complete. The folder ``out``
    must not exist or must be empty. For ``drop_invalid``, see :func:`refuse_misread`.
    """
    check_all(
        lambda: _refuse_unknown_range(checked), lambda: refuse_misread(checked, drop_invalid=drop_invalid)
    )
    data, changes = checked.data, []
    must_be_outside(data.root, out)
    refuse_existing(out)
    splits: dict[str, Annotations] = {}
    for name, whole in data.parts.items():
        left_out = checked.unreadable[name] | checked.leaked.get(name, set())
        chosen = [number for number in range(len(whole)) if number not in left_out]
        if not chosen:
            raise UserError(
                f"{data.root}: every image of the split '{name}' would be dropped, so nothing was written; "
                "fix some images by hand"
            )
        splits[name] = subset(whole, chosen)
        changes += _changes(checked, name)
    with new_folder(out) as folder:
        lost = write(data.format, folder, splits, ImageFiles("link" if link else "copy"))
    if gone := sorted(set(data.splits) - set(data.parts)):
        changes.append(f"the list '{gone[0]}' was not written, because it only combines the other splits")
    return Fixed(out, changes + lost)


def _changes(checked: Checked, name: str) -> list[str]:
    done = {"stops": "dropped", "dropped": "dropped", "clipped": "clipped", "replaced": "dropped"}
    sentences = [
        f"{name}: {KINDS[kind].counted(count)}: {done[KINDS[kind].outcome]}"
        for kind, count, _ in checked.findings[name]
        if fails(kind)
    ]
    if leaked := checked.leaked.get(name, set()) - checked.unreadable[name]:
        sentences.append(f"{name}: {counted(len(leaked), 'image')} shared with another split: dropped")
    return sentences
