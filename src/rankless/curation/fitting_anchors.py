"""Compute anchors for a data set and compare them with a model's default anchors."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rankless.curation.data_set import known_format
from rankless.data.anchors import SCENES, average_iou, box_sizes, kmeans_anchors
from rankless.data.builtin import named
from rankless.data.datasets.annotated import BoxedImages, DetectionImages
from rankless.data.datasets.class_choice import Classes, refuse_classes
from rankless.data.datasets.open_split import open_annotations
from rankless.data.formats.registry import recognize
from rankless.errors import UserError
from rankless.models import zoo
from rankless.recipe.schema import Model

Anchors = tuple[tuple[float, float], ...]  # width and height of each anchor


@dataclass(frozen=True)
class Fit:
    """Anchors in pixels, sorted by area, and the mean IoU between each box and its best anchor."""

    anchors: Anchors
    average_iou: float


@dataclass(frozen=True)
class FittedAnchors(Fit):
    """Anchors fitted to a data set, and the default anchors of a model with inputs of (H, W) pixels."""

    boxes: int
    image_size: tuple[int, int]
    model: str
    default: Fit

    @property
    def recipe_line(self) -> str:
        """The ``key=value`` override that sets the fitted anchors."""
        pairs = ",".join(f"[{width:g},{height:g}]" for width, height in self.anchors)
        return f"model.anchors=[{pairs}]"

    def as_json(self) -> dict[str, Any]:
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
    """Compute anchors for the boxes of a split with k-means.

    By default, the number of anchors and the input size, (H, W) in pixels, are those of the model.
    """
    format = known_format(format)
    zoo.check_name(model)
    published = zoo.spec(Model(name=model))
    if not published.anchors:
        raise UserError(f"--model {model}: this model has no anchors; use a detector such as yolov4")
    chosen = size or published.size
    images: DetectionImages
    if made := named(root):
        recognize(root)  # warns about a folder of this name
        refuse_classes(made.TITLE, classes)
        images = made.detection(split, SCENES, 0, chosen)
    else:
        annotations = open_annotations(root, split, format, classes=classes)
        if not annotations.has_boxes:
            raise UserError(f"{root}: the images have classes but no boxes; expected data with boxes")
        images = BoxedImages(annotations)
    sizes = box_sizes(images, chosen)
    if not len(sizes):
        raise UserError(f"{root}: the split '{split}' has no boxes; choose a split with boxes")
    anchors = kmeans_anchors(sizes, count or len(published.anchors), seed)
    default = Fit(published.anchors, average_iou(sizes, published.anchors))
    return FittedAnchors(anchors, average_iou(sizes, anchors), len(sizes), chosen, model, default)
