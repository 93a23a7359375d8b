"""Compute anchors for a data set and compare them with the model's default anchors."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankless.curation.data_set import known_format
from rankless.data.anchors import SCENES, average_iou, box_sizes, kmeans_anchors
from rankless.data.datasets.annotated import BoxedImages, DetectionImages
from rankless.data.datasets.builtin import DIGITS, DigitScenes
from rankless.data.datasets.class_choice import Classes, refuse_classes
from rankless.data.datasets.open_split import open_annotations
from rankless.errors import UserError
from rankless.models import zoo
from rankless.recipe.schema import Model

Anchors = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Fit:
    """Anchors, (width, height) in pixels, sorted by area, and the boxes' mean IoU with their best anchors."""

    anchors: Anchors
    average_iou: float


@dataclass(frozen=True)
class FittedAnchors(Fit):
    """Anchors fitted to ``boxes`` boxes on an input of ``image_size`` (H, W), and the model's defaults."""

    boxes: int
    image_size: tuple[int, int]
    model: str
    default: Fit

    @property
    def recipe_line(self) -> str:
        """The line in a recipe, or the command-line argument, that sets the fitted anchors."""
        pairs = ",".join(f"[{width:g},{height:g}]" for width, height in self.anchors)
        return f"model.anchors=[{pairs}]"

    def as_json(self) -> dict[str, Any]:
        """Return the anchors as JSON-compatible data."""
        return {**asdict(self), "recipe": self.recipe_line}


def fitted_anchors(
    root: str,
    format: str = "auto",
    *,
    split: str = "train",
    classes: Classes = "auto",
    model: str = "yolov4",
    count: int | None = None,
    size: tuple[int, int] | None = None,
    seed: int = 0,
) -> FittedAnchors:
    """Compute the anchors that best fit the boxes of a split.

    ``root`` may be ``digits``. ``count`` and ``size``, (H, W) in pixels, default to the model's values.
    """
    format = known_format(format)
    zoo.check_name(model)
    published = zoo.spec(Model(name=model))
    if not published.anchors:
        raise UserError(f"--model {model}: it has no anchors; expected a detector such as yolov4")
    chosen = size or published.size
    images: DetectionImages
    if root == DIGITS and not Path(root).exists():
        refuse_classes(classes)
        images = DigitScenes(split, SCENES)
    else:
        annotations = open_annotations(root, split, format, classes=classes)
        if not annotations.has_boxes:
            raise UserError(f"{root}: its images have classes and no boxes; anchors need boxes")
        images = BoxedImages(annotations)
    sizes = box_sizes(images, chosen)
    if not len(sizes):
        raise UserError(f"{root}: the split '{split}' has no boxes; anchors need boxes")
    anchors = kmeans_anchors(sizes, count or len(published.anchors), seed)
    default = Fit(published.anchors, average_iou(sizes, published.anchors))
    return FittedAnchors(anchors, average_iou(sizes, anchors), len(sizes), chosen, model, default)
