"""Opening a split of any data set: recognize the format, read it, judge it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rankless.data.formats.registry import format_named, recognize
from rankless.data.index.annotation_cache import Key, cached
from rankless.data.index.annotations import Annotations
from rankless.data.index.validation import validate
from rankless.errors import UserError
from rankless.files.cache_folder import hold


def open_annotations(
    root: str, split: str, format: str = "auto", *, max_bad: float = 1.0, rescan: bool = False
) -> Annotations:
    """One split, fit to be trained on.

    Args:
        root: a folder, or a file such as a ``data.yaml``.
        split: its name.
        format: one of :data:`rankless.data.formats.registry.NAMES`, or ``auto``.
        max_bad: the largest share of images that may be unreadable.
        rescan: whether the data is read anew though nothing seems to have changed.

    Raises:
        UserError: nothing there, no such split, or faults that stop a training: all of them at once.
    """
    found = examine(root, split, format, rescan=rescan)
    found.findings.stop(f"Mend these; `rankless data check {root}` shows them all.")
    bad = found.findings.counts.get("unreadable image", 0)
    if bad > max_bad * len(found):
        raise UserError(
            [
                *(f"{one.where}: {one.problem}" for one in found.findings.first["unreadable image"]),
                f"{root}: {bad} of the {len(found)} images of the split '{split}' cannot be read, which is "
                f"more than data.max_bad ({max_bad:g}) allows: replace them, or take them out.",
            ]
        )
    return found


def examine(root: str, split: str, format: str = "auto", *, rescan: bool = False) -> Annotations:
    """One split whatever is wrong with it; :attr:`Annotations.findings` says what.

    It is read once and then kept until its files change: see :mod:`rankless.data.index.annotation_cache`.

    Raises:
        UserError: nothing there, no such split, or its files change while they are read.
    """
    place = Path(root).expanduser().absolute()
    name, why = recognize(root, format)

    def read() -> tuple[Annotations, list[str]]:
        page = format_named(name)
        raw = page.read(place, split)
        return validate(raw, name), raw.depends

    kept = cached(Key(str(place), split, name), read, rescan=rescan)
    # Said anew: another opening may have named the format, or the data by another path.
    read_as = f"{root}: read as {format_named(name).TITLE} because {why}: {len(kept)} images of '{split}'"
    found = replace(kept, about=(read_as, *kept.about))
    if found.folder is not None:
        hold(Path(found.folder), found)
    return found
