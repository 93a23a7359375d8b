"""Every model by its name. A new model is a new page and one line here."""

from __future__ import annotations

import difflib

from rankless import recipe
from rankless.errors import UserError
from rankless.models.layers import BATCH_NORM_MOMENTUM
from rankless.models.yolo import YOLOV3_TINY, YOLOV4_TINY, YOLOV4_TINY_3L, DetectionModel, Variant

MODELS: dict[str, Variant] = {
    "yolov3-tiny": YOLOV3_TINY,
    "yolov4-tiny": YOLOV4_TINY,
    "yolov4-tiny-3l": YOLOV4_TINY_3L,
}


def variant(name: str) -> Variant:
    """The model called ``name``.

    Raises:
        UserError: there is none; names the nearest and all.
    """
    if name in MODELS:
        return MODELS[name]
    near = difflib.get_close_matches(name.lower(), MODELS, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UserError(f"model.name is '{name}': no such model; {hint}Expected one of {', '.join(MODELS)}.")


def build(model: recipe.Model, classes: int, momentum: float = BATCH_NORM_MOMENTUM) -> DetectionModel:
    """A freshly initialised network on the CPU, drawn from torch's global generator.

    Args:
        model: the recipe's part.
        classes: how many classes it tells apart.
        momentum: of the batch norms' running statistics, in PyTorch's sense; Darknet's is 0.01.

    Raises:
        UserError: no such model, or no class.
    """
    chosen = variant(model.name)
    if classes < 1:
        raise UserError(f"The data has {classes} classes: a detector needs at least one. Name them.")
    return DetectionModel(chosen, classes, width=model.width, dropout=model.dropout, momentum=momentum)
