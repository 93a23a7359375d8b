"""Opening a split of any data set: recognize the format, read it, judge it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rankless.data.formats.registry import format_named, recognize
from rankless.data.index.annotation_cache import cached
from rankless.data.index.annotations import Annotations
from rankless.data.index.validation import validate
from rankless.errors import UserError, counted
from rankless.files.cache_folder import hold

_UNREADABLE = "unreadable image"


def open_annotations(
    root: str, split: str, format: str = "auto", *, max_bad: float = 1.0, rescan: bool = False
) -> Annotations:
    """Open one split, fit to be trained on.

    Args:
        root: a folder, or a file such as a ``data.yaml``.
        split: its name.
        format: one of :data:`rankless.data.formats.registry.NAMES`, or ``auto``.
        max_bad: the largest fraction of images that may be unreadable.
        rescan: whether the data is read again even if nothing seems to have changed.

    Raises:
        UserError: nothing there, no such split, or problems that stop a training: all of them at once.
    """
    annotations = examine(root, split, format, rescan=rescan)
    bad, also = annotations.findings.counts.get(_UNREADABLE, 0), []
    if bad > max_bad * len(annotations):
        also.append(
            f"{root}: {bad:,} of the {counted(len(annotations), 'image')} of the split '{split}' cannot be "
            f"read, more than data.max_bad ({max_bad:g}) allows"
        )
    if errors := [*annotations.findings.stopping([_UNREADABLE] if also else []), *also]:
        raise UserError([*errors, f"fix these; `rankless data check {root}` shows them all"])
    return annotations


def examine(root: str, split: str, format: str = "auto", *, rescan: bool = False) -> Annotations:
    """Open one split whatever is wrong with it: see :attr:`Annotations.findings`.

    It is read once and then cached until its files change: see :mod:`rankless.data.index.annotation_cache`.

    Raises:
        UserError: nothing there, no such split, or its files change while they are read.
    """
    path = Path(root).expanduser().absolute()
    name, why = recognize(root, format)

    def read() -> tuple[Annotations, list[str]]:
        page = format_named(name)
        raw = page.read(path, split)
        return validate(raw, name), raw.depends

    known = cached(str(path), split, name, read, rescan=rescan)
    # Reported again: another opening may have named the format, or the data by another path.
    images = f"{counted(len(known), 'image')} of '{split}'"
    read_as = f"{root}: read as {format_named(name).TITLE} because {why}: {images}"
    annotations = replace(known, about=(read_as, *known.about))
    if annotations.folder is not None:
        hold(Path(annotations.folder), annotations)
    return annotations
