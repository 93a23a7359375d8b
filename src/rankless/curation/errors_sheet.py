"""The worst images of a model and the likely wrong labels, drawn on a contact sheet."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from rankless.curation import contact_sheet
from rankless.curation.looking import Selection, Shown
from rankless.curation.model_errors import Mistake, ModelErrors, Opened, WrongImage
from rankless.data.images.drawing import Mark
from rankless.data.images.image_file import UnreadableImage
from rankless.errors import counted
from rankless.files.outputs import Outputs

_AROUND = 1.5  # sides of a doubtful label's box that are shown on each side of it
_SHORT = {
    "missed": "missed",
    "class": "wrong class",
    "place": "wrong place",
    "duplicate": "again",
    "background": "no label",
}
_LEAST = 96  # pixels of the image that are shown around a small one


def write(errors: ModelErrors, opened: Opened, count: int, out: Path, outputs: Outputs) -> None:
    """Draw the worst ``count`` images and as many likely wrong labels into ``out``."""
    selection = Selection(_title(errors), errors.class_names, shown(errors, opened, count))
    outputs.refuse_inputs([opened.path, *(image.source for image in errors.images)])
    contact_sheet.write(selection, out, outputs)


def shown(errors: ModelErrors, opened: Opened, count: int) -> list[Shown]:
    """Return the cells of the sheet: first the worst images, then the doubtful labels from near."""
    cells: list[Shown] = []
    doubtful = errors.doubtful()[:count]
    for heading, made in (
        ("Worst images", (_whole(errors, opened, image) for image in errors.images[:count])),
        ("Labels to check, the surest first", (_near(errors, opened, image, one) for image, one in doubtful)),
    ):
        for at, cell in enumerate(made):
            cells.append(cell._replace(heading="" if at else heading))
    return cells


def summary(errors: ModelErrors, image: WrongImage) -> str:
    """Return what is wrong with an image in a few words: ``2 missed, 1 of background``."""
    if is_whole(image.mistakes[0]):
        return doubt(errors, image.mistakes[0])
    counts = Counter(one.kind for one in image.mistakes)
    words = {"class": "wrong class", "place": "wrong place", "background": "on background"}
    return ", ".join(f"{count} {words.get(kind, kind)}" for kind, count in counts.most_common())


def doubt(errors: ModelErrors, one: Mistake) -> str:
    """Return what is odd about a label in a few words: ``labeled dog, predicted cat (90%)``."""
    labeled = f"labeled {errors.name(one.label)}" if one.label >= 0 else "no label"
    if one.kind == "missed":
        return f"{labeled}, not found"
    score = one.doubt if is_whole(one) else one.cost
    return f"{labeled}, predicted {errors.name(one.predicted)} ({score:.0%})"


def _named(source: str) -> str:
    """Return a file's name; a built-in scene as it is given to ``rankless predict``."""
    return Path(source).name if Path(source).suffix else source


def text(errors: ModelErrors, one: Mistake) -> str:
    """Return what is written on an error's box."""
    predicted, label = errors.name(one.predicted), errors.name(one.label)
    if one.kind == "missed":
        return f"missed {label}"
    more = {
        "class": f", labeled {label}",
        "place": ", not quite here",
        "duplicate": " again",
        "background": ", no label",
    }[one.kind]
    return f"{predicted}: {one.cost:.0%}{more}"


def is_whole(one: Mistake) -> bool:
    """Return whether an error is about the whole image, as a classifier's are."""
    return one.kind == "class" and not any(one.box)


def _title(errors: ModelErrors) -> str:
    wrong = counted(len(errors.images), "image")
    return f"{errors.model} · {errors.split} · errors in {wrong} of {errors.looked_at:,}"


def _whole(errors: ModelErrors, opened: Opened, image: WrongImage) -> Shown:
    caption = f"{summary(errors, image)} · {_named(image.source)}"
    if (read := _image_of(opened, image.index)) is None:
        return Shown(None, [], caption, frozenset())
    pixels = Image.fromarray(read[0].permute(1, 2, 0).contiguous().numpy())
    marks = [_mark(errors, one, read[1]) for one in image.mistakes if not is_whole(one)]
    return Shown(pixels, marks, caption, frozenset(mark.label for mark in marks))


def _near(errors: ModelErrors, opened: Opened, image: WrongImage, one: Mistake) -> Shown:
    caption = f"{doubt(errors, one)} · {_named(image.source)}"
    if (read := _image_of(opened, image.index)) is None:
        return Shown(None, [], caption, frozenset())
    pixels = Image.fromarray(read[0].permute(1, 2, 0).contiguous().numpy())
    if is_whole(one):
        return Shown(pixels, [], caption, frozenset())
    mark = _mark(errors, one, read[1])
    x1, y1, x2, y2 = mark.box
    reach = max(_AROUND * max(x2 - x1, y2 - y1), _LEAST / 2)
    left, top = max(0, round(x1 - reach)), max(0, round(y1 - reach))
    right, bottom = min(pixels.width, round(x2 + reach)), min(pixels.height, round(y2 + reach))
    cut = pixels.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
    moved = (x1 - left, y1 - top, x2 - left, y2 - top)
    return Shown(cut, [mark._replace(box=moved)], caption, frozenset({mark.label}))


def _mark(errors: ModelErrors, one: Mistake, reduced: int) -> Mark:
    x1, y1, x2, y2 = (side / reduced for side in one.box)
    label = one.predicted if one.predicted >= 0 else one.label
    return Mark((x1, y1, x2, y2), text(errors, one), label, short=_SHORT[one.kind])


def _image_of(opened: Opened, index: int) -> tuple[torch.Tensor, int] | None:
    """An evaluation image, uint8 (3, H, W), and pixels of the source per pixel of it; None if gone."""
    try:
        read: Any = opened.task.evaluation_data().images.read(index)
    except UnreadableImage:
        return None
    return (read, 1) if isinstance(read, torch.Tensor) else (read.image, read.reduced)
