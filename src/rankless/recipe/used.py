"""Which keys of a trained model's recipe a change can have an effect on, when it is scored or predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankless.errors import UserError, one_of
from rankless.recipe.schema import BUILT_IN_TASKS

# Keys and sections of a recipe that scoring reads nothing of.
_NOT_SCORING = (
    "epochs", "seed", "optim", "schedule", "batch.images", "batch_norm", "reduce",
    "find_unused_parameters", "ema", "checkpoint", "evaluate.every", "evaluate.best", "model.pretrained",
    "model.freeze", "data.multi_scale", "data.multi_scale_every", "data.train_images", "data.augment",
)  # fmt: skip
_SCORING: Mapping[str, tuple[str, ...]] = {
    "classify": ("data.augment", "data.augment.crop")  # whether the middle of an image is shown
}
_BOTH = ("precision", "cpu_isa", "model.image_size", "evaluate.tta", "data.detail")
PREDICTING: Mapping[str, tuple[str, ...]] = {
    "detect": (
        *_BOTH, "data.fit", "data.resample", "data.pad", "evaluate.nms", "evaluate.iou",
        "evaluate.class_agnostic", "evaluate.detections",
    ),
    "classify": (*_BOTH, "data.augment.crop"),
}  # fmt: skip
"""The keys that prediction reads, by task."""


def refuse_unused_in_scoring(overrides: Sequence[str], task: str) -> None:
    """Refuse changes to a recipe that change no score.

    Args:
        overrides: ``key=value``, as for :func:`rankless.recipe.load.load`.
        task: of the recipe; a custom one may read any key.

    Raises:
        UserError: lists all of them.
    """
    keys = _keys(overrides)
    if "task" in keys or task not in BUILT_IN_TASKS:
        return
    unused = [
        key
        for key in keys
        if key not in _SCORING.get(task, ())
        and any(key == one or key.startswith(f"{one}.") for one in _NOT_SCORING)
    ]
    if unused:
        raise UserError(
            f"command line: key '{key}': evaluation does not use it; leave it out" for key in unused
        )


def refuse_unused_in_prediction(overrides: Sequence[str], task: str) -> None:
    """Refuse changes to a recipe that change no prediction; arguments as above.

    Raises:
        UserError: lists all of them.
    """
    used = PREDICTING.get(task, ())
    unused = [key for key in _keys(overrides) if key not in used]
    if unused:
        hints = {
            "evaluate.confidence": "give --confidence",
            "evaluate.multi_label": "a box is shown under its best class; leave it out",
        }
        if task == "classify":
            no_boxes = "a classifier has no boxes and answers with its five best classes; leave it out"
            hints |= dict.fromkeys(("evaluate.iou", "evaluate.detections"), no_boxes)
        raise UserError(
            f"command line: key '{key}': prediction does not use it; "
            f"{hints.get(key, f'expected {one_of(used)}')}"
            for key in unused
        )


def _keys(overrides: Sequence[str]) -> list[str]:
    return [override.partition("=")[0] for override in overrides]
