"""Open a split of any data set: recognize its format, read it and validate it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rankless.data.datasets.class_choice import Classes, class_list, with_classes
from rankless.data.formats import shards
from rankless.data.formats.registry import NUMBERED, also, format_named, recognize
from rankless.data.formats.splits import is_for_tests, is_for_validation, known_as
from rankless.data.index.annotation_cache import cached
from rankless.data.index.annotations import Annotations
from rankless.data.index.validation import validate
from rankless.errors import UserError, counted, shell_word
from rankless.files.cache_folder import hold
from rankless.files.remote import Location, RemotePath, is_remote, location
from rankless.recipe.familiar import is_by_name

_UNREADABLE = "unreadable image"
_LISTS = (".txt", ".csv", ".json")  # extensions of files that a split may name


def open_annotations(
    root: str,
    split: str,
    format: str = "auto",
    *,
    classes: Classes = "auto",
    max_bad: float = 1.0,
    rescan: bool = False,
) -> Annotations:
    """Open one split for training; raise an error if it has problems that stop training.

    Args:
        root: a folder, or a file such as a ``data.yaml``.
        split: the split's name, or its annotation file, relative to ``root``.
        format: one of :data:`rankless.data.formats.registry.NAMES`, or ``auto``.
        classes: the classes to use; see :mod:`rankless.data.datasets.class_choice`.
        max_bad: the largest fraction of images that may be unreadable.
        rescan: whether to read the data again even if nothing seems to have changed.
    """
    annotations = examine(root, split, format, classes=classes, rescan=rescan)
    bad, also = annotations.findings.counts.get(_UNREADABLE, 0), []
    if bad > max_bad * len(annotations):
        also.append(
            f"{root}: {bad:,} of the {counted(len(annotations), 'image')} of the split '{split}' cannot be "
            f"read, more than data.max_bad ({max_bad:g}) allows"
        )
    if errors := [*annotations.findings.stopping([_UNREADABLE] if also else []), *also]:
        raise UserError([*errors, f"fix these; `rankless data check {shell_word(root)}` shows them all"])
    return annotations


def split_to_train_on(root: str, train: str, val: str, format: str = "auto") -> str:
    """Return the split to train on: ``train`` or, if ``val`` is ``none``, its data before any division."""
    if val != "none" or is_remote(root):
        return train
    page = format_named(recognize(root, format)[0])
    return page.undivided(Path(root).expanduser(), train) if hasattr(page, "undivided") else train


def examine(
    root: str, split: str, format: str = "auto", *, classes: Classes = "auto", rescan: bool = False
) -> Annotations:
    """Open one split even if it has errors, which are listed in :attr:`Annotations.findings`.

    The split is read once and cached until its files change. See :mod:`rankless.data.index.annotation_cache`.
    """
    root, split = _of_a_file(root, split)
    path = location(root)
    if isinstance(path, Path):
        path = path.absolute()
    name, why = recognize(root, format)
    chosen = class_list(classes, root)

    def read() -> tuple[Annotations, list[str]]:
        page = format_named(name)
        raw = page.read(path, split, chosen) if chosen and name in NUMBERED else page.read(path, split)
        made = validate(raw, name)
        if chosen:
            made = with_classes(made, chosen, root, _of_other_splits(name, path, split, made, chosen))
        if is_for_validation(split) and (test := _tests_instead(split, page.splits(path))):
            note = f"{root} has no split '{split}', so its '{test}' is used as '{split}'"
            made = replace(made, about=(*made.about, note))
        return made, raw.depends

    # Each choice of classes has its own cache entry.
    kind = json.dumps([name, *chosen]) if chosen else name
    if isinstance(path, RemotePath):
        try:
            kind = json.dumps([kind, shards.fingerprint(path)])
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}") from error
    known = cached(str(path), split, kind, read, rescan=rescan)
    # Not cached, because another call may have named the format, or given another path to the data.
    images = f"{counted(len(known), 'image')} of '{split}'"
    read_as = f"{root}: read as {format_named(name).TITLE} because {why}: {images}"
    annotations = replace(known, about=(read_as, *also(root, name), *known.about))
    if annotations.folder is not None:
        hold(Path(annotations.folder), annotations)
    return annotations


def _of_a_file(root: str, split: str) -> tuple[str, str]:
    """Return the root and the split's name. If ``split`` is a file below ``root``, that file is the root."""
    file = Path(root).expanduser() / split
    if is_remote(root) or file.suffix not in _LISTS or not file.is_file():
        return root, split
    return str(file), file.stem


def _tests_instead(split: str, existing: Sequence[str]) -> str:
    """Return the name of the test split that was read as the validation ``split``, or "" if none was."""
    for name in (known_as(split, existing), shards.known_as(split, list(existing))):
        if is_for_tests(re.split("[-_.]", name)[-1]):
            return name
    return ""


def without_boxes(root: str, split: str, annotations: Annotations) -> str:
    """Return an error message if no box of the split is usable, or "" otherwise."""
    if not annotations.has_boxes or len(annotations.boxes):
        return ""
    images = counted(len(annotations), "image")
    return f"{root}: the split '{split}' ({images}) has no usable box"


def of_another_task(pretrained: str, task: str, root: str, *, boxed: bool) -> str:
    """Return an error message if weights of one task are to be trained on data for the other, or "".

    Args:
        pretrained: ``model.pretrained``. Names of published weights are never an error here.
        task: the task of the weights, ``detect`` or ``classify``.
        root: the data.
        boxed: whether the data has boxes.
    """
    if boxed == (task == "detect") or is_by_name(pretrained):
        return ""
    kinds, what = ("a classifier", "a detector"), "boxes" if boxed else "a class for each image"
    recipe = "yolov4-tiny" if boxed else "resnet18"
    return (
        f"model.pretrained is '{pretrained}', {kinds[not boxed]}, but {root} has {what}; expected "
        f"{kinds[boxed]}; give other weights, or train from scratch: rankless train {recipe} "
        f"data.root={shell_word(root)}"
    )


def _of_other_splits(
    name: str, root: Location, split: str, made: Annotations, chosen: Sequence[str]
) -> Iterator[str]:
    """Yield the classes of the other splits, because in classification each split names its own classes."""
    if not made.has_boxes and not set(chosen) <= set(made.class_names):
        page = format_named(name)
        for other in page.splits(root):
            yield from page.read(root, other).names if other != split else ()
