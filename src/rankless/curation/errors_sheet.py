"""Make a contact sheet of the images with a model's worst errors and of labels that are probably wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rankless.curation import contact_sheet
from rankless.curation.model_errors import Box, Mistake, ModelErrors, Opened, WrongImage
from rankless.curation.sampling import Selection, Shown, pil_image
from rankless.data.images.drawing import Mark
from rankless.data.images.image_file import UnreadableImage
from rankless.errors import counted
from rankless.files.outputs import Outputs
from rankless.task_kinds import kind_of

_AROUND = 1.5  # half the side of a close-up, as a multiple of the longer side of the label's box
_KEY = " (solid: predictions, dashed: labels)"
_LEAST = 96  # minimum side of a close-up in pixels


def write(errors: ModelErrors, opened: Opened, count: int, out: Path, outputs: Outputs) -> None:
    """Write a sheet with the ``count`` worst images and the ``count`` most doubtful labels to ``out``."""
    wrong = counted(len(errors.images), "image")
    title = f"{errors.model} · {errors.split} · errors in {wrong} of {errors.readable:,}"
    selection = Selection(title, errors.class_names, shown(errors, opened, count))
    outputs.refuse_inputs([opened.path, *(image.source for image in errors.images)])
    contact_sheet.write(selection, out, outputs)


def shown(errors: ModelErrors, opened: Opened, count: int) -> list[Shown]:
    """Return the worst images, followed by close-ups of the most doubtful labels."""
    whole = [(image, summary(errors, image), image.mistakes) for image in errors.images[:count]]
    doubtful = [(image, doubt(errors, one), [one]) for image, one in errors.doubtful()[:count]]
    cells: list[Shown] = []
    for heading, rows in (
        ("Worst images" + _KEY * kind_of(opened.task.recipe.task).boxes, whole),
        ("Labels to check, the likeliest errors first", doubtful),
    ):
        for image, text, mistakes in rows:
            cells.append(_cell(errors, opened, image, text, mistakes, heading, near=rows is doubtful))
            heading = ""
    return cells


def summary(errors: ModelErrors, image: WrongImage) -> str:
    """Summarize the errors in an image, as in ``2 missed, 1 background``."""
    if is_whole(image.mistakes[0]):
        return doubt(errors, image.mistakes[0])
    counts = Counter(one.kind for one in image.mistakes)
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common())


def doubt(errors: ModelErrors, one: Mistake) -> str:
    """Describe a doubtful label, as in ``labeled dog, predicted cat (90%)``."""
    labeled = f"labeled {errors.name(one.label)}" if one.label >= 0 else "no label"
    if one.kind == "missed":
        return f"{labeled}, not found"
    score = one.doubt if is_whole(one) else one.cost
    return f"{labeled}, predicted {errors.name(one.predicted)} ({score:.0%})"


def text(errors: ModelErrors, one: Mistake) -> str:
    """Return the text to draw at an error's box."""
    if one.kind == "missed":
        return f"missed: {errors.name(one.label)}"
    labeled = f", labeled {errors.name(one.label)}" if one.kind == "classification" else ""
    return f"{one.kind}: {errors.name(one.predicted)} {one.cost:.0%}{labeled}"


def is_whole(one: Mistake) -> bool:
    """Return whether an error concerns the whole image, as all errors of classifiers do."""
    return one.kind == "classification" and not any(one.box)


def _cell(
    errors: ModelErrors,
    opened: Opened,
    image: WrongImage,
    text: str,
    mistakes: Sequence[Mistake],
    heading: str,
    *,
    near: bool,
) -> Shown:
    """Return an image with its errors marked; with ``near``, a close-up of the first error."""
    file = Path(image.source)
    caption = f"{text} · {file.name if file.suffix else image.source}"  # built-in scenes have no suffix
    try:
        read: Any = opened.task.evaluation_data().images.read(image.index)
    except UnreadableImage:
        return Shown(None, [], caption, frozenset(), heading)
    pixels, reduced = (read, 1) if isinstance(read, torch.Tensor) else (read.image, read.reduced)
    drawn = pil_image(pixels)
    marks = [mark for one in mistakes for mark in _marks(errors, one, reduced)]
    if near and marks:
        x1, y1, x2, y2 = marks[0].box
        reach = max(_AROUND * max(x2 - x1, y2 - y1), _LEAST / 2)
        left, top = max(0, round(x1 - reach)), max(0, round(y1 - reach))
        right, bottom = min(drawn.width, round(x2 + reach)), min(drawn.height, round(y2 + reach))
        drawn = drawn.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
        marks = [mark._replace(box=_moved(mark.box, left, top)) for mark in marks]
    return Shown(drawn, marks, caption, frozenset(mark.label for mark in marks), heading)


def _moved(box: Box, left: float = 0, top: float = 0, reduced: int = 1) -> Box:
    x1, y1, x2, y2 = (side / reduced for side in box)
    return x1 - left, y1 - top, x2 - left, y2 - top


def _marks(errors: ModelErrors, one: Mistake, reduced: int) -> list[Mark]:
    """Return marks for the box of an error and for the annotated box."""
    if is_whole(one):
        return []
    label = one.predicted if one.predicted >= 0 else one.label
    is_missed = one.kind == "missed"
    box = _moved(one.box, reduced=reduced)
    marks = [Mark(box, text(errors, one), label, short=one.kind, dashed=is_missed)]
    if one.annotated is not None and not is_missed:
        marks.append(Mark(_moved(one.annotated, reduced=reduced), "", one.label, dashed=True))
    return marks
