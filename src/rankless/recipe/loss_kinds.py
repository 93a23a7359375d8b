"""The kinds of loss, each with exactly the keys that affect it.

A recipe's ``loss`` is a tagged union of these classes; the kind is ``loss.name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast, get_type_hints

from pydantic import Discriminator, Tag
from pydantic.dataclasses import dataclass

from rankless.recipe.fields import (
    ClassWeights,
    Fraction,
    NotNegative,
    Only,
    ProperFraction,
    by_tag,
    config,
    get,
)

BoxSimilarity = Literal["iou", "giou", "diou", "ciou", "eiou", "siou"]
"""Name of a similarity of boxes in :mod:`rankless.geometry.boxes`; the box loss is 1 minus the similarity."""


_FOCAL = Only("loss.objectness_loss", ("focal", "quality-focal"))


@dataclass(frozen=True, config=config)
class LossKeys:
    """The loss. Each loss has its own keys; ``auto`` is the loss that the model was published with."""

    name: str = "auto"
    """Name of the loss; ``auto`` is the one the model was published with."""


@dataclass(frozen=True, config=config)
class _YoloLoss(LossKeys):
    """The loss of a YOLO head; ``auto`` uses the values that the head was published with."""

    box: Literal["auto"] | NotNegative = "auto"
    """Factor on the box loss."""
    objectness: Literal["auto"] | NotNegative = "auto"
    """Factor on the objectness loss."""
    classes: Literal["auto"] | NotNegative = "auto"
    """Factor on the classification loss."""
    box_loss: Literal["auto", "mse", BoxSimilarity] = "auto"
    """How a box is compared with the ground truth; ``mse`` is YOLOv3's error of center and size."""
    objectness_loss: Literal["auto", "bce", "focal", "quality-focal"] = "auto"
    """Binary cross-entropy, focal loss, or quality focal loss, whose target is the IoU."""
    gamma: Annotated[NotNegative, _FOCAL] = 2.0
    """Exponent of the focal losses."""
    alpha: Annotated[Literal["none"] | Fraction, _FOCAL] = "none"
    """Weight of positives in the focal losses; negatives weigh 1 - alpha. ``none`` weighs both equally."""
    ignore: Literal["auto"] | Fraction = "auto"
    """Predictions that overlap any ground-truth box by more than this IoU are not counted as negatives."""
    smoothing: Literal["auto"] | ProperFraction = "auto"
    """Label smoothing for the classes."""


@dataclass(frozen=True, config=config)
class Yolov3Loss(_YoloLoss):
    """The loss of YOLOv3: a ground-truth box is assigned only to its best anchor."""

    name: Literal["yolov3"] = "yolov3"


@dataclass(frozen=True, config=config)
class _ManyAnchorsLoss(_YoloLoss):
    """A loss that may assign a ground-truth box to several anchors."""

    anchor_iou: Literal["auto"] | Fraction = "auto"
    """Anchors of a layer are also positive if their shape's IoU with the box is above this (1: only the
    best)."""


@dataclass(frozen=True, config=config)
class Yolov4Loss(_ManyAnchorsLoss):
    """The loss of YOLOv4: a ground-truth box may be assigned to several anchors."""

    name: Literal["yolov4"] = "yolov4"


@dataclass(frozen=True, config=config)
class CfgLoss(_ManyAnchorsLoss):
    """The loss that a Darknet cfg file describes."""

    name: Literal["cfg"] = "cfg"


@dataclass(frozen=True, config=config)
class AnchorFreeLoss(LossKeys):
    """The loss of anchor-free heads."""

    name: Literal["anchor-free"] = "anchor-free"
    assign: Literal["simota", "task-aligned"] = "task-aligned"
    """How points are assigned to ground-truth boxes: ``simota`` or ``task-aligned``."""
    box_loss: BoxSimilarity = "giou"
    """How a box is compared with the ground truth."""
    box: NotNegative = 2.5
    """Factor on the box loss."""
    classes: NotNegative = 1.0
    """Factor on the classification loss."""
    dfl: NotNegative = 0.5
    """Factor on the distribution focal loss."""
    smoothing: ProperFraction = 0.0
    """Label smoothing ε of the positives' classes: quality · (y (1 - ε) + ε / 2)."""


@dataclass(frozen=True, config=config)
class PublishedLoss(LossKeys):
    """A loss that is built into the model."""

    name: Literal["published"] = "published"


@dataclass(frozen=True, config=config)
class _ClassifierLoss(LossKeys):
    """The keys that all classification losses have."""

    smoothing: ProperFraction = 0.0
    """Label smoothing ε: y (1 - ε) + ε / C (Szegedy et al., 2016)."""
    class_weights: Literal["none", "balanced"] | ClassWeights = "none"
    """Factor for each class, or ``balanced``: inversely proportional to its number of training images."""


@dataclass(frozen=True, config=config)
class CrossEntropyLoss(_ClassifierLoss):
    """Cross-entropy over the classes."""

    name: Literal["cross-entropy"] = "cross-entropy"


@dataclass(frozen=True, config=config)
class FocalLoss(_ClassifierLoss):
    """Each image's cross-entropy times (1 - p)^γ, where p is the probability of its class.

    Lin et al., "Focal Loss for Dense Object Detection", 2017, over a softmax.
    """

    name: Literal["focal"] = "focal"
    gamma: NotNegative = 2.0
    """The exponent γ."""


def _left_open(*kinds: type[LossKeys]) -> type[LossKeys]:
    """Return a loss class with the keys of all these classes; each key may also be ``auto``."""
    types: dict[str, Any] = {"name": Literal["auto"]}
    for kind in kinds:
        for name, one in get_type_hints(kind, include_extras=True).items():
            types.setdefault(name, Literal["auto"] | one)
    body = {
        "__doc__": "The loss that the model was published with, or, for a custom task's model, any.",
        "__module__": __name__,
        "__annotations__": types,
        **dict.fromkeys(types, "auto"),
    }
    return cast(type[LossKeys], dataclass(frozen=True, config=config)(type("AutoLoss", (LossKeys,), body)))


AutoLoss = _left_open(Yolov4Loss, AnchorFreeLoss, FocalLoss)


def loss_kind(loss: Any) -> str:
    """Return the tag of a loss, which is an instance or a mapping."""
    return str(get(loss, "name", "auto"))


AnyLoss = Annotated[
    Annotated[Yolov3Loss, Tag("yolov3")]
    | Annotated[Yolov4Loss, Tag("yolov4")]
    | Annotated[CfgLoss, Tag("cfg")]
    | Annotated[AnchorFreeLoss, Tag("anchor-free")]
    | Annotated[PublishedLoss, Tag("published")]
    | Annotated[CrossEntropyLoss, Tag("cross-entropy")]
    | Annotated[FocalLoss, Tag("focal")]
    | Annotated[AutoLoss, Tag("auto")],  # type: ignore[valid-type]
    Discriminator(loss_kind),
]
LOSSES: Mapping[str, type[LossKeys]] = by_tag(AnyLoss)
"""Maps each tag to its loss class."""


def Loss(**keys: Any) -> LossKeys:  # noqa: N802 (it stands where a class would)
    """Return the section ``loss`` with these keys; without a name, the recipe's model determines the loss."""
    return LOSSES.get(loss_kind(keys), AutoLoss)(**keys)
