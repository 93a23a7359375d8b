"""Open a split of a data set: recognize the format, read the annotations and validate them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from rankless.data.datasets.class_choice import (
    Classes,
    class_list,
    give_each_class_a_name,
    with_classes,
    with_ignored,
)
from rankless.data.formats import shards
from rankless.data.formats.registry import NAMES, Format, also, format_named, recognize
from rankless.data.formats.splits import is_for_tests, is_for_validation, known_as
from rankless.data.index.annotation_cache import cached
from rankless.data.index.annotations import Annotations
from rankless.data.index.levels import report_few_levels
from rankless.data.index.raw import Raw
from rankless.data.index.validation import validate
from rankless.errors import UserError, counted, listed, shell_word
from rankless.files.cache_folder import hold
from rankless.files.remote import Location, RemotePath, is_remote, location
from rankless.recipe.familiar import is_by_name
from rankless.recipe.own_options import with_options
from rankless.recipe.schema import Data
from rankless.task_kinds import kind_for, kind_of

_UNREADABLE = "unreadable image"
_LISTS = (".txt", ".csv", ".json")  # extensions of files that can be given as a split


def open_annotations(
    root: str,
    split: str,
    format: str = "auto",
    *,
    classes: Classes = "auto",
    ignore: Sequence[str] = (),
    max_bad: float = 1.0,
    rescan: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Annotations:
    """Open a split; raise an error if it has problems that stop training.

    Args:
        root: a folder, or a file such as ``data.yaml``.
        split: name of the split, or path of its annotation file relative to ``root``.
        format: one of :data:`rankless.data.formats.registry.NAMES`, or ``auto``, possibly followed by a colon
            and the form of the boxes, a key of :data:`rankless.data.index.box_forms.FORMS`.
        classes, ignore: values of ``data.classes`` and ``data.ignore_class``.
        max_bad: maximum fraction of unreadable images.
        rescan: whether to read the data again even if it seems unchanged.
        options: value of ``data.options``.
    """
    annotations = examine(root, split, format, classes=classes, ignore=ignore, rescan=rescan, options=options)
    bad, also = annotations.findings.counts.get(_UNREADABLE, 0), []
    if bad > max_bad * len(annotations):
        also.append(
            f"{root}: {bad:,} of the {counted(len(annotations), 'image')} in the split '{split}' cannot be "
            f"read; data.max_bad allows only a fraction of {max_bad:g}"
        )
    if errors := [*annotations.findings.stopping([_UNREADABLE] if also else []), *also]:
        raise UserError(
            [*errors, f"fix these errors; to list all errors, run `rankless data check {shell_word(root)}`"]
        )
    return annotations


def opened(data: Data, split: str) -> Annotations:
    """Open a split of a recipe's data; see :func:`open_annotations`."""
    return open_annotations(
        data.root,
        split,
        data.format,
        classes=data.classes,
        ignore=data.ignore_class,
        max_bad=data.max_bad,
        options=data.options,
    )


def split_to_train_on(root: str, train: str, val: str, format: str = "auto") -> str:
    """Return the split to train on: ``train`` or, if ``val`` is ``none``, the undivided data."""
    if val != "none" or is_remote(root):
        return train
    page = format_named(recognize(root, format)[0])
    return page.undivided(Path(root).expanduser(), train) if hasattr(page, "undivided") else train


def examine(
    root: str,
    split: str,
    format: str = "auto",
    *,
    classes: Classes = "auto",
    ignore: Sequence[str] = (),
    rescan: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Annotations:
    """Open a split even if it has errors, and record them in :attr:`Annotations.findings`.

    The annotations are cached until the files change. See :func:`open_annotations` for the arguments.
    """
    root, split = _of_a_file(root, split)
    path = location(root)
    if isinstance(path, Path):
        path = path.absolute()
    (name, why), form = recognize(root, format), format.partition(":")[2]
    page = format_named(name)
    if not hasattr(page, "read"):
        raise UserError(
            f"'{root}': this data is generated, so it has no files; use a data folder, or run "
            f"`rankless data show {root}`, `rankless data anchors {root}` or `rankless train {root}`"
        )
    chosen = class_list(classes, root)
    accepted = inspect.signature(page.read).parameters
    read_split: Callable[..., Raw] = page.read
    if options or "options" in accepted:
        own = getattr(page, "Options", None) if "options" in accepted else None
        own_options = with_options(own, ("data", "options"), options or {}, name)
        read_split = partial(read_split, options=own_options)

    def read() -> tuple[Annotations, list[str]]:
        shape = form if "form" in accepted else ""
        given: dict[str, Any] = {"class_names": chosen, "form": shape}
        more = {key: value for key, value in given.items() if value and key in accepted}
        raw = read_split(path, split, **more)
        if name not in NAMES:  # the module may change
            if not isinstance(raw, Raw):
                raise UserError(
                    f"read() of {name} returned {type(raw).__name__}; expected a {Raw.__module__}.Raw"
                )
            raw.depends.append(inspect.getfile(cast(ModuleType, page)))
        give_each_class_a_name(raw, chosen, root)
        made = validate(raw, name, "" if shape == "polygon" else form)
        report_few_levels(made)
        if chosen:
            further = [each for each in ignore if each in made.class_names and each not in chosen]
            elsewhere = _of_other_splits(page, read_split, path, split, made, chosen)
            made = with_classes(made, [*chosen, *further], root, elsewhere)
        if ignore and made.has_boxes:
            made = with_ignored(made, ignore, root)
        if is_for_validation(split) and (test := _tests_instead(split, page.splits(path))):
            note = f"{root} has no split '{split}', so '{test}' is used instead"
            made = replace(made, about=(*made.about, note))
        return made, raw.depends

    # Each selection of classes has its own cache entry.
    kind = json.dumps([name, *chosen]) if chosen else name
    kind = json.dumps([kind, {"form": form, "ignore": list(ignore)}]) if form or ignore else kind
    kind = json.dumps([kind, options]) if options else kind
    if isinstance(path, RemotePath):
        try:
            kind = json.dumps([kind, shards.fingerprint(path)])
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}") from error
    known = cached(str(path), split, kind, read, rescan=rescan)
    # Not cached, because other calls may use another value of data.format or another path to the data.
    images = f"{counted(len(known), 'image')} of '{split}'"
    read_as = f"{root}: read as {format_named(name).TITLE} because {why}: {images}"
    about = (read_as, *also(root, name), *known.about, *_classes_without_boxes(known, split))
    annotations = replace(known, about=about)
    if annotations.folder is not None:
        hold(Path(annotations.folder), annotations)
    return annotations


def _of_a_file(root: str, split: str) -> tuple[str, str]:
    """Return the root and the split; if ``split`` is a file in ``root``, this file becomes the root."""
    file = Path(root).expanduser() / split
    if is_remote(root) or file.suffix not in _LISTS or not file.is_file():
        return root, split
    return str(file), file.stem


def _tests_instead(split: str, existing: Sequence[str]) -> str:
    for name in (known_as(split, existing), shards.known_as(split, list(existing))):
        if is_for_tests(re.split("[-_.]", name)[-1]):
            return name
    return ""


def _classes_without_boxes(annotations: Annotations, split: str) -> Iterator[str]:
    if annotations.has_boxes and len(annotations.boxes):
        labels = {*np.unique(annotations.labels).tolist()}
        names = [name for label, name in enumerate(annotations.class_names) if label not in labels]
        if names:
            some = f"{len(names):,} of the {counted(len(annotations.class_names), 'class', 'classes')}"
            yield f"'{split}' has no boxes of {some}: {listed(names)}"


def without_boxes(root: str, split: str, annotations: Annotations) -> str:
    """Return an error message if the split has no usable boxes, otherwise ""."""
    if not annotations.has_boxes or len(annotations.boxes):
        return ""
    images = counted(len(annotations), "image")
    return f"{root}: the split '{split}' ({images}) has no usable boxes"


def of_another_task(pretrained: str, task: str, root: str, *, boxed: bool) -> str:
    """Return an error message if pretrained weights and data belong to different tasks, otherwise "".

    ``task`` is the task of the weights, and ``boxed`` is true if the data has boxes. Names of published
    weights are not checked.
    """
    kind, weights = kind_for(boxes=boxed), kind_of(task)
    if kind is weights or is_by_name(pretrained):
        return ""
    return (
        f"model.pretrained is '{pretrained}', {weights.model}, but {root} has {kind.annotations}; expected "
        f"{kind.model}; use other weights, or train from scratch with `rankless train {kind.recipe} "
        f"data.root={shell_word(root)}`"
    )


def _of_other_splits(
    page: Format,
    read_split: Callable[..., Raw],
    root: Location,
    split: str,
    made: Annotations,
    chosen: Sequence[str],
) -> Iterator[str]:
    """Yield the classes of the other splits if this split lacks a selected class."""
    if not made.has_boxes and not set(chosen) <= set(made.class_names):
        for other in page.splits(root):
            yield from read_split(root, other).names if other != split else ()
