"""The kinds of loss, each with exactly the keys that affect it.

A recipe's ``loss`` is a tagged union of these classes, tagged by ``loss.name``.
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
"""Name of a box similarity in :mod:`rankless.geometry.boxes`; the box loss is 1 minus the similarity."""


_FOCAL = Only("loss.objectness_loss", ("focal", "quality-focal"))


@dataclass(frozen=True, config=config)
class LossKeys:
    """The loss. Each loss has its own keys."""

    name: str = "auto"
    """Name of the loss; ``auto`` is the one the model was published with."""


@dataclass(frozen=True, config=config)
class _YoloLoss(LossKeys):
    """The loss of YOLO heads. ``auto`` is the value that the head was published with."""

    box: Literal["auto"] | NotNegative = "auto"
    """Weight of the box loss."""
    objectness: Literal["auto"] | NotNegative = "auto"
    """Weight of the objectness loss."""
    classes: Literal["auto"] | NotNegative = "auto"
    """Weight of the classification loss."""
    box_loss: Literal["auto", "mse", BoxSimilarity] = "auto"
    """Box loss: one minus a similarity, or ``mse``, YOLOv3's squared error of center and size."""
    objectness_loss: Literal["auto", "bce", "focal", "quality-focal"] = "auto"
    """Objectness loss: binary cross-entropy, focal loss, or quality focal loss, whose target is the IoU."""
    gamma: Annotated[NotNegative, _FOCAL] = 2.0
    """Exponent of the focal losses."""
    alpha: Annotated[Literal["none"] | Fraction, _FOCAL] = "none"
    """Weight of positives in the focal losses; the weight of negatives is 1 - alpha. With ``none``, both
    have the same weight."""
    ignore: Literal["auto"] | Fraction = "auto"
    """Predictions with a higher IoU than this with any ground-truth box do not count as negatives."""
    smoothing: Literal["auto"] | ProperFraction = "auto"
    """Label smoothing for the classes."""


@dataclass(frozen=True, config=config)
class Yolov3Loss(_YoloLoss):
    """The loss of YOLOv3, which assigns each ground-truth box only to its best anchor."""

    name: Literal["yolov3"] = "yolov3"


@dataclass(frozen=True, config=config)
class _ManyAnchorsLoss(_YoloLoss):
    """A loss that may assign a ground-truth box to several anchors."""

    anchor_iou: Literal["auto"] | Fraction = "auto"
    """Anchors whose shape has a higher IoU than this with a ground-truth box are also positive; with 1, only
    the best anchor is."""


@dataclass(frozen=True, config=config)
class Yolov4Loss(_ManyAnchorsLoss):
    """The loss of YOLOv4, which may assign a ground-truth box to several anchors."""

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
    """How points are assigned to ground-truth boxes."""
    box_loss: BoxSimilarity = "giou"
    """Similarity of boxes; the box loss is one minus the similarity."""
    box: NotNegative = 2.5
    """Weight of the box loss."""
    classes: NotNegative = 1.0
    """Weight of the classification loss."""
    dfl: NotNegative = 0.5
    """Weight of the distribution focal loss."""
    smoothing: ProperFraction = 0.0
    """Label smoothing ε for positives: the target is quality · (y (1 - ε) + ε / 2)."""


@dataclass(frozen=True, config=config)
class PublishedLoss(LossKeys):
    """A loss that is built into the model."""

    name: Literal["published"] = "published"


@dataclass(frozen=True, config=config)
class _ClassifierLoss(LossKeys):
    """Keys that all classification losses have."""

    smoothing: ProperFraction = 0.0
    """Label smoothing ε: the target is y (1 - ε) + ε / C (Szegedy et al., 2016)."""
    class_weights: Literal["none", "balanced"] | ClassWeights = "none"
    """Weight of each class, or ``balanced``: inversely proportional to its number of training images."""


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
    """Return a loss class with the keys of all given classes; each key may also be ``auto``."""
    types: dict[str, Any] = {"name": Literal["auto"]}
    for kind in kinds:
        for name, one in get_type_hints(kind, include_extras=True).items():
            types.setdefault(name, Literal["auto"] | one)
    body = {
        "__doc__": "The loss that the model was published with or, for a custom task, any loss.",
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
    """Return a ``loss`` section with these keys. Without a name, the recipe's model determines the loss."""
    return LOSSES.get(loss_kind(keys), AutoLoss)(**keys)
