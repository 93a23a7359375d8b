"""Collect the facts about a data set and this machine that ``rankless new`` uses to choose a recipe."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rankless.curation.data_set import DataSet, known_format, suggest_format
from rankless.curation.splitting import MARK, real_folder, split
from rankless.curation.statistics import statistics
from rankless.data.datasets.class_choice import Classes
from rankless.data.datasets.open_split import open_annotations, without_boxes
from rankless.data.formats.registry import format_named, recognize
from rankless.data.formats.splits import VAL_FRACTION, is_for_tests, is_for_training, known_as
from rankless.data.index.annotations import Annotations
from rankless.data.index.findings import UNKNOWN_RANGE
from rankless.errors import UserError, counted, listed, printable
from rankless.files.reading import NAMES, read_text
from rankless.files.remote import is_remote, location
from rankless.files.writing import remove_tree
from rankless.hardware import memory
from rankless.hardware.cores import usable_cores
from rankless.recipe.schema import Data
from rankless.task_kinds import TaskKind, kind_for

FEWEST = 10
"""Minimum number of training images for a new recipe."""

_UNIFORM = 1.1  # maximum ratio of two aspect ratios for which one input shape is suitable


@dataclass(frozen=True)
class Facts:
    """Facts about a data set and this machine.

    Attributes:
        root, format, classes: values of ``data.root``, ``data.format`` and ``data.classes``.
        split_note: a note on the origin of the validation split, if needed.
        notes: notes on how the training split was read, and on its findings.
        unknown_range: a description of the values of the first image whose range is unknown, if any.
        counts: number of training boxes per class, or of training images for classification.
        height, width: median height and width of the training images in pixels.
        is_uniform: whether nearly all images have the same aspect ratio.
        box_side: side length that 95% of the boxes exceed, in pixels of an image of median size.
        memory: available memory in bytes.
    """

    root: str
    format: str
    classes: str | Sequence[str]
    train: str
    val: str
    split_note: str
    boxed: bool
    train_images: int
    val_images: int
    counts: Mapping[str, int]
    height: float
    width: float
    is_uniform: bool
    box_side: float
    gpus: int
    cores: int
    memory: int
    notes: Sequence[str] = ()
    unknown_range: str = ""

    @property
    def kind(self) -> TaskKind:
        """The kind of task that the data is for."""
        return kind_for(boxes=self.boxed)

    @property
    def devices(self) -> int:
        """Number of devices that training would use: all GPUs, or one process per CPU core."""
        return self.gpus or self.cores

    @property
    def machine(self) -> str:
        return counted(self.gpus, "GPU") if self.gpus else f"{counted(self.cores, 'core')} and no GPU"


def facts_of(
    root: str,
    divided: Path,
    format: str = "auto",
    *,
    classes: Classes = "auto",
    undo: ExitStack | None = None,
) -> Facts:
    """Collect facts about a data set. If it has no validation split, divide it into the folder ``divided``.

    The new folder contains links to the original images. It is removed if ``undo`` is closed by an error.
    """
    format = known_format(format)
    name, _ = recognize(root, format)
    page, path = format_named(name), location(root)
    with suggest_format(root, format):
        existing = page.splits(path)
        train, note = _train(existing), ""
        whole = _opened(root, train, format, classes)
    # Without the first sentence, "read as …". The recipe sets data.range for images of unknown range.
    notes = [*whole.about[1:], *whole.findings.notes(but=(UNKNOWN_RANGE,))]
    refuse_too_little(root, whole)
    val = known_as("val", existing)
    if val not in existing and not is_remote(root):
        note = f"Rankless divided the data, because {printable(root, 1000)} has no validation split."
        if _is_divided(root, divided, whole.digest()):
            note = f"Rankless divided {printable(root, 1000)} earlier, and the data has not changed since."
        else:
            divide(root, train, divided, format, classes)
            if undo is not None:
                undo.push(lambda kind, *_: remove_tree(divided) if kind else None)
        root, train, format, classes = str(divided), "train", "auto", "auto"
        whole = _opened(root, train, format, classes)
    elif is_for_tests(val):
        note = "This is the test split, because the data has no validation split."
    elif isinstance(path, Path) and hasattr(page, "undivided") and page.undivided(path, train) != train:
        note = "Rankless set these images aside, because the data has no splits."
    data = DataSet(root, name, {train: whole, "val": _opened(root, "val", format, classes)})
    return _facts(data, train, format, classes, note, notes)


def refuse_too_little(root: str, train: Annotations) -> None:
    """Raise a UserError if there are too few training images, in total or for a class."""
    problems = []
    if len(train) < FEWEST:
        problems.append(
            f"{root}: found {counted(len(train), 'training image')}; expected at least {FEWEST}; add images"
        )
    if not train.has_boxes:
        counts = np.bincount(np.asarray(train.labels), minlength=len(train.class_names)).tolist()
        if len(counts) < 2:
            problems.append(
                f"{root}: found only one class, {listed(train.class_names)}; expected at least two; add a "
                "folder for another class"
            )
        if few := [name for name, count in zip(train.class_names, counts, strict=True) if count < 2]:
            problems.append(
                f"{root}: found fewer than two training images of {listed(few)}; expected at least two of "
                "each class; add images, or select the other classes with --classes"
            )
    if problems:
        raise UserError(problems)


def divide(root: str, train: str, out: Path, format: str, classes: Classes) -> None:
    """Divide a split into ``train`` and ``val`` in the new folder ``out``, with links to the images."""
    if os.path.lexists(out):
        raise UserError(
            f"{out}: already exists, but {root} has no validation split and would be divided into this "
            f"folder; use {out} if it contains the divided data, or move it away"
        )
    split(root, out, format, splits=(train,), classes=classes, val=VAL_FRACTION, link=True)


def _is_divided(root: str, divided: Path, digest: str) -> bool:
    """Return whether ``divided`` was made from ``root``; raise a UserError if ``root`` has changed since.

    The images are links, so only the annotations and the set of images matter.
    """
    try:
        made = json.loads(read_text(divided / MARK, NAMES))
        if made["root"] != real_folder(root):
            return False
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False
    if made.get("digest") != digest:
        raise UserError(
            f"{divided}: Rankless divided {root} into this folder, but the data or the selected classes have "
            f"changed since; to divide the data again, move {divided} away"
        )
    return True


def _train(existing: Sequence[str]) -> str:
    """Return ``train`` or, if there is no such split, the only split that is not for validation or tests."""
    if known_as("train", existing) in existing:
        return "train"
    others = [name for name in existing if is_for_training(name)]
    return others[0] if len(others) == 1 else "train"


def _opened(root: str, name: str, format: str, classes: Classes) -> Annotations:
    opened = open_annotations(root, name, format, classes=classes, max_bad=Data().max_bad)
    if problem := without_boxes(root, name, opened):
        raise UserError(problem)
    return opened


def _facts(
    data: DataSet, train: str, format: str, classes: Classes, split_note: str, notes: Sequence[str]
) -> Facts:
    splits = statistics(data).splits
    here, held = splits[train], splits["val"]
    aspect = here.aspect
    height, width = here.height.median or 0.0, here.width.median or 0.0
    side = here.box_side.low if here.box_side else None
    unknown = (one for each in data.splits.values() for one in each.findings.first.get(UNKNOWN_RANGE, ()))
    hidden = bool(os.environ.get("RANKLESS_CPU"))
    return Facts(
        root=data.root,
        format=format,
        classes=classes if isinstance(classes, str) else [*classes],
        train=train,
        val="val",
        split_note=split_note,
        boxed=data.has_boxes,
        train_images=here.images,
        val_images=held.images,
        counts=here.classes,
        height=height,
        width=width,
        is_uniform=bool(aspect.low and aspect.high and aspect.high / aspect.low <= _UNIFORM),
        box_side=(side or 0.0) * math.sqrt(height * width),
        gpus=0 if hidden else torch.cuda.device_count(),  # does not initialize CUDA
        cores=usable_cores(),
        memory=memory.available(),
        notes=notes,
        unknown_range=next((one.problem.partition(";")[0] for one in unknown), ""),
    )
