"""The kinds of loss, each with the keys that have an effect on it and no others.

A recipe's ``loss`` is a tagged union of these classes; the kind is ``loss.name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Tag, model_validator
from pydantic.dataclasses import dataclass

from rankless.recipe.fields import (
    ClassWeights,
    Fraction,
    NotNegative,
    ProperFraction,
    by_tag,
    clash,
    config,
    get,
)

BoxSimilarity = Literal["iou", "giou", "diou", "ciou", "eiou", "siou"]
"""Similarities of two boxes, of which 1 minus is a box loss: the names in :mod:`rankless.geometry.boxes`."""


@dataclass(frozen=True, config=config)
class Loss:
    """The loss; each has its own keys. ``auto`` is what the model was published with.

    ``Loss(name=…, …)`` is an instance of that kind.

    Attributes:
        name: which loss; ``auto`` is the one the model was published with.
    """

    name: str = "auto"

    def __new__(cls, *args: Any, **keys: Any) -> Self:
        """Choose the kind by the name."""
        kind: Any = LOSSES.get(loss_kind(keys), AutoLoss) if cls is Loss else cls
        made: Self = object.__new__(kind)
        return made


@dataclass(frozen=True, config=config)
class _YoloLoss(Loss):
    """The loss of a YOLO head; ``auto`` is what the head was published with.

    Attributes:
        box: factor on the loss of the boxes.
        objectness: factor on the loss of the objectness.
        classes: factor on the loss of the classes.
        box_loss: how a box is compared with the truth; ``mse`` is YOLOv3's error of center and size.
        objectness_loss: binary cross-entropy, focal loss, or quality focal loss, whose target is the IoU.
        gamma: exponent of the focal losses.
        alpha: the focal losses' weight of positives; negatives weigh 1 - alpha. ``none`` weighs both alike.
        ignore: predictions that overlap any truth by more than this IoU are not counted as negatives.
        smoothing: label smoothing of the classes.
    """

    box: Literal["auto"] | NotNegative = "auto"
    objectness: Literal["auto"] | NotNegative = "auto"
    classes: Literal["auto"] | NotNegative = "auto"
    box_loss: Literal["auto", "mse", BoxSimilarity] = "auto"
    objectness_loss: Literal["auto", "bce", "focal", "quality-focal"] = "auto"
    gamma: NotNegative = 2.0
    alpha: Literal["none"] | Fraction = "none"
    ignore: Literal["auto"] | Fraction = "auto"
    smoothing: Literal["auto"] | ProperFraction = "auto"

    @model_validator(mode="after")
    def _gamma_and_alpha_are_of_focal_losses(self) -> Self:
        if self.objectness_loss not in ("focal", "quality-focal"):
            for key in ("gamma", "alpha"):
                if getattr(self, key) != getattr(type(self), key):
                    raise clash(
                        f"'loss.{key}' is {getattr(self, key)}, but loss.objectness_loss is "
                        f"'{self.objectness_loss}': expected focal or quality-focal; leave '{key}' out",
                        key,
                        "objectness_loss",
                    )
        return self


@dataclass(frozen=True, config=config)
class Yolov3Loss(_YoloLoss):
    """The loss of YOLOv3: a truth belongs to its best anchor alone."""

    name: Literal["yolov3"] = "yolov3"


@dataclass(frozen=True, config=config)
class _ManyAnchorsLoss(_YoloLoss):
    """A loss by which a truth may belong to several anchors.

    Attributes:
        anchor_iou: every anchor of a layer whose shape matches by more than this IoU is positive too
            (1: only the best).
    """

    anchor_iou: Literal["auto"] | Fraction = "auto"


@dataclass(frozen=True, config=config)
class Yolov4Loss(_ManyAnchorsLoss):
    """The loss of YOLOv4."""

    name: Literal["yolov4"] = "yolov4"


@dataclass(frozen=True, config=config)
class CfgLoss(_ManyAnchorsLoss):
    """The loss that a Darknet cfg file describes."""

    name: Literal["cfg"] = "cfg"


@dataclass(frozen=True, config=config)
class AnchorFreeLoss(Loss):
    """The loss of the anchor-free heads.

    Attributes:
        assign: which points are positives: ``simota`` or ``task-aligned``.
        box_loss: how a box is compared with the truth.
        box: factor on the loss of the boxes.
        classes: factor on the loss of the classes.
        dfl: factor on the distribution focal loss.
        smoothing: label smoothing ε of the positives' classes: quality · (y (1 - ε) + ε / 2).
    """

    name: Literal["anchor-free"] = "anchor-free"
    assign: Literal["simota", "task-aligned"] = "task-aligned"
    box_loss: BoxSimilarity = "giou"
    box: NotNegative = 2.5
    classes: NotNegative = 1.0
    dfl: NotNegative = 0.5
    smoothing: ProperFraction = 0.0


@dataclass(frozen=True, config=config)
class PublishedLoss(Loss):
    """The loss that is part of the model."""

    name: Literal["published"] = "published"


@dataclass(frozen=True, config=config)
class _ClassifierLoss(Loss):
    """The keys that the losses of classifiers have in common.

    Attributes:
        smoothing: label smoothing ε: y (1 - ε) + ε / C (Szegedy et al., 2016).
        class_weights: factor of each class, or ``balanced``: in inverse proportion to their number of
            training images.
    """

    smoothing: ProperFraction = 0.0
    class_weights: Literal["none", "balanced"] | ClassWeights = "none"


@dataclass(frozen=True, config=config)
class CrossEntropyLoss(_ClassifierLoss):
    """Cross-entropy over the classes of a classifier."""

    name: Literal["cross-entropy"] = "cross-entropy"


@dataclass(frozen=True, config=config)
class FocalLoss(_ClassifierLoss):
    """Each image's cross-entropy times (1 - p)^γ, where p is the probability of its class.

    Lin et al., "Focal Loss for Dense Object Detection", 2017, over a softmax.

    Attributes:
        gamma: the exponent γ.
    """

    name: Literal["focal"] = "focal"
    gamma: NotNegative = 2.0


@dataclass(frozen=True, config=config)
class AutoLoss(Loss):
    """The loss that the model was published with, or, for a model that only a custom task knows, any.

    Attributes:
        box, objectness, classes, box_loss, objectness_loss: as of ``yolov4``.
        gamma, alpha, ignore, anchor_iou: as of ``yolov4``.
        assign, dfl: as of ``anchor-free``.
        smoothing, class_weights: as of ``cross-entropy``.
    """

    name: Literal["auto"] = "auto"
    box: Literal["auto"] | NotNegative = "auto"
    objectness: Literal["auto"] | NotNegative = "auto"
    classes: Literal["auto"] | NotNegative = "auto"
    box_loss: Literal["auto", "mse", BoxSimilarity] = "auto"
    objectness_loss: Literal["auto", "bce", "focal", "quality-focal"] = "auto"
    gamma: Literal["auto"] | NotNegative = "auto"
    alpha: Literal["auto", "none"] | Fraction = "auto"
    ignore: Literal["auto"] | Fraction = "auto"
    anchor_iou: Literal["auto"] | Fraction = "auto"
    assign: Literal["auto", "simota", "task-aligned"] = "auto"
    dfl: Literal["auto"] | NotNegative = "auto"
    smoothing: Literal["auto"] | ProperFraction = "auto"
    class_weights: Literal["auto", "none", "balanced"] | ClassWeights = "auto"


def loss_kind(loss: Any) -> str:
    """Return the tag of a loss, which is an instance or a mapping of its keys."""
    return str(get(loss, "name", "auto"))


AnyLoss = Annotated[
    Annotated[Yolov3Loss, Tag("yolov3")]
    | Annotated[Yolov4Loss, Tag("yolov4")]
    | Annotated[CfgLoss, Tag("cfg")]
    | Annotated[AnchorFreeLoss, Tag("anchor-free")]
    | Annotated[PublishedLoss, Tag("published")]
    | Annotated[CrossEntropyLoss, Tag("cross-entropy")]
    | Annotated[FocalLoss, Tag("focal")]
    | Annotated[AutoLoss, Tag("auto")],
    Discriminator(loss_kind),
]
LOSSES: Mapping[str, type[Loss]] = by_tag(AnyLoss)
"""Tag to kind."""
