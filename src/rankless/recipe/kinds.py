"""The kinds of model and of loss, each with the keys that have an effect on it and no others.

A recipe's ``model`` and ``loss`` are tagged unions of these classes. The kind of a model follows from
``model.name`` (or ``model.cfg``), the kind of a loss from ``loss.name``; its default follows from the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic.dataclasses import dataclass

from rankless.recipe.fields import (
    Activation,
    Anchors,
    ClassWeights,
    CountOrZero,
    Fraction,
    Name,
    NotNegative,
    ProperFraction,
    Side,
    Size,
    Text,
    clash,
    config,
)


@dataclass(frozen=True, config=config)
class Model:
    """The network; its kind follows from ``name``, and each kind has its own keys.

    ``Model(name=…, …)`` is an instance of that kind.

    Attributes:
        name: one that ``rankless models`` lists, or ``timm/NAME``.
        image_size: the network's input in pixels: one side, or [height, width]; multiples of 32 in a
            detector; ``auto`` is the size the model was published with.
        pretrained: weights to start from: a file that Rankless wrote or imported, or ``timm``.
        freeze: epochs during which the backbone is frozen.
    """

    label: ClassVar[str] = ""  # with its article, for messages
    pattern: ClassVar[str] = ""  # of the names that belong to this kind

    name: Name = "yolov4-tiny"
    image_size: Literal["auto"] | Side | Size = "auto"
    pretrained: Text = ""
    freeze: CountOrZero = 0

    def __new__(cls, *args: Any, **keys: Any) -> Self:
        """Choose the kind by the keys."""
        kind: Any = _MODELS[model_kind(keys)] if cls is Model else cls
        made: Self = object.__new__(kind)
        return made

    @model_validator(mode="after")
    def _name_is_of_this_kind(self) -> Self:
        if (kind := _MODELS[model_kind(vars(self))]) is not type(self):
            raise clash(
                f"'model.name' is '{self.name}', which is {kind.label}, not {self.label}; expected the name "
                f"of {self.label}",
                "name",
            )
        return self


@dataclass(frozen=True, config=config)
class _ConvolutionalDetector(Model):
    """What all detectors of this project's own layers take.

    Attributes:
        width: factor on every channel count of the backbone and the neck.
        dropout: fraction of the channels dropped before each head's last convolution.
        activation: replaces the published one everywhere; ``auto`` leaves it.
        involution: side of the involution kernels before the heads; 0 disables them.
    """

    width: Annotated[float, Field(gt=0, le=64)] = 1.0
    dropout: ProperFraction = 0.0
    activation: Activation = "auto"
    involution: Literal[0, 3, 5, 7] = 0


@dataclass(frozen=True, config=config)
class YoloModel(_ConvolutionalDetector):
    """A YOLO detector with anchors.

    Attributes:
        cfg: a Darknet cfg file that describes the network in place of ``name``, or its text.
        anchors: ``default`` (published), ``kmeans`` (from the training boxes), or [[width, height], …] in
            pixels of the input.
    """

    label: ClassVar[str] = "a YOLO model"
    pattern: ClassVar[str] = r"^yolo(?!.*-anchor-free$)"

    cfg: Text = ""
    anchors: Literal["default", "kmeans"] | Anchors = "default"


@dataclass(frozen=True, config=config)
class AnchorFreeModel(_ConvolutionalDetector):
    """A detector with this project's anchor-free heads.

    Attributes:
        dfl: bins per side of the heads' distances (distribution focal loss); 0 predicts them directly.
    """

    label: ClassVar[str] = "an anchor-free model"
    pattern: ClassVar[str] = r"^yolo.*-anchor-free$"

    dfl: Annotated[int, Field(ge=0, le=1024)] = 0


@dataclass(frozen=True, config=config)
class TorchvisionModel(Model):
    """A detector of torchvision's."""

    label: ClassVar[str] = "a torchvision model"
    pattern: ClassVar[str] = r"^torchvision/"


@dataclass(frozen=True, config=config)
class TimmModel(Model):
    """A classifier of timm's.

    Attributes:
        dropout: fraction of the features dropped before the last layer.
    """

    label: ClassVar[str] = "a timm model"
    pattern: ClassVar[str] = r"^timm/"

    dropout: ProperFraction = 0.0


@dataclass(frozen=True, config=config)
class ResnetModel(Model):
    """A ResNet.

    Attributes:
        dropout: fraction of the features dropped before the last layer.
        activation: replaces the published one everywhere; ``auto`` leaves it. Not ``prelu``, whose slope the
            positions in a block would share.
    """

    label: ClassVar[str] = "a ResNet"
    pattern: ClassVar[str] = r"^resnet"

    dropout: ProperFraction = 0.0
    activation: Literal["auto", "leaky", "mish", "swish", "relu"] = "auto"


@dataclass(frozen=True, config=config)
class Densenet:
    """The options of a DenseNet; ``auto`` is as published.

    Attributes:
        growth: channels that each layer adds.
        compression: fraction of the channels that remain after a transition.
        bottleneck: a 1×1 convolution before each 3×3.
        stem: ``imagenet`` (7×7 with stride 2 and pooling) or ``small`` (3×3, for images of some 32 pixels).
        separable: depthwise-separable 3×3 convolutions.
    """

    growth: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = "auto"
    compression: Annotated[float, Field(gt=0, le=1)] = 0.5
    bottleneck: bool = True
    stem: Literal["auto", "imagenet", "small"] = "auto"
    separable: bool = False


@dataclass(frozen=True, config=config)
class DensenetModel(Model):
    """A DenseNet.

    Attributes:
        dropout: fraction of each layer's new features that is dropped.
        activation: replaces the published one everywhere; ``auto`` leaves it.
        densenet: its options.
    """

    label: ClassVar[str] = "a DenseNet"
    pattern: ClassVar[str] = r"^densenet"

    dropout: ProperFraction = 0.0
    activation: Activation = "auto"
    densenet: Densenet = field(default_factory=Densenet)


@dataclass(frozen=True, config=config)
class CustomModel(_ConvolutionalDetector):
    """A model that only a custom task knows: every key may be given.

    Attributes:
        cfg, anchors, dfl, densenet: as in the models that have them.
    """

    label: ClassVar[str] = "a custom model"

    cfg: Text = ""
    anchors: Literal["default", "kmeans"] | Anchors = "default"
    dfl: Annotated[int, Field(ge=0, le=1024)] = 0
    densenet: Densenet = field(default_factory=Densenet)


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
        kind: Any = _LOSSES.get(loss_kind(keys), AutoLoss) if cls is Loss else cls
        made: Self = object.__new__(kind)
        return made


@dataclass(frozen=True, config=config)
class _YoloLoss(Loss):
    """The loss of a YOLO head; ``auto`` is what the head was published with.

    Attributes:
        box, objectness, classes: factors on the parts.
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
    box_loss: Literal["auto", "mse", "iou", "giou", "diou", "ciou", "eiou", "siou"] = "auto"
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
class Yolov4Loss(_YoloLoss):
    """The loss of YOLOv4.

    Attributes:
        anchor_iou: every anchor of a layer whose shape matches by more than this IoU is positive too
            (1: only the best).
    """

    name: Literal["yolov4"] = "yolov4"
    anchor_iou: Literal["auto"] | Fraction = "auto"


@dataclass(frozen=True, config=config)
class CfgLoss(_YoloLoss):
    """The loss that a Darknet cfg file describes.

    Attributes:
        anchor_iou: every anchor of a layer whose shape matches by more than this IoU is positive too
            (1: only the best).
    """

    name: Literal["cfg"] = "cfg"
    anchor_iou: Literal["auto"] | Fraction = "auto"


@dataclass(frozen=True, config=config)
class AnchorFreeLoss(Loss):
    """The loss of the anchor-free heads.

    Attributes:
        assign: which points are positives: ``simota`` or ``task-aligned``.
        box_loss: how a box is compared with the truth.
        box, classes, dfl: factors on the parts; ``dfl`` is of the distribution focal loss.
        smoothing: label smoothing ε of the positives' classes: quality · (y (1 - ε) + ε / 2).
    """

    name: Literal["anchor-free"] = "anchor-free"
    assign: Literal["simota", "task-aligned"] = "task-aligned"
    box_loss: Literal["iou", "giou", "diou", "ciou", "eiou", "siou"] = "giou"
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
    """What the losses of classifiers share.

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
    box_loss: Literal["auto", "mse", "iou", "giou", "diou", "ciou", "eiou", "siou"] = "auto"
    objectness_loss: Literal["auto", "bce", "focal", "quality-focal"] = "auto"
    gamma: Literal["auto"] | NotNegative = "auto"
    alpha: Literal["auto", "none"] | Fraction = "auto"
    ignore: Literal["auto"] | Fraction = "auto"
    anchor_iou: Literal["auto"] | Fraction = "auto"
    assign: Literal["auto", "simota", "task-aligned"] = "auto"
    dfl: Literal["auto"] | NotNegative = "auto"
    smoothing: Literal["auto"] | ProperFraction = "auto"
    class_weights: Literal["auto", "none", "balanced"] | ClassWeights = "auto"


_MODELS: Mapping[str, type[Model]] = {
    "yolo": YoloModel,
    "anchor-free": AnchorFreeModel,
    "torchvision": TorchvisionModel,
    "resnet": ResnetModel,
    "densenet": DensenetModel,
    "timm": TimmModel,
    "custom": CustomModel,
}
_LOSSES: Mapping[str, type[Loss]] = {
    "yolov3": Yolov3Loss,
    "yolov4": Yolov4Loss,
    "cfg": CfgLoss,
    "anchor-free": AnchorFreeLoss,
    "published": PublishedLoss,
    "cross-entropy": CrossEntropyLoss,
    "focal": FocalLoss,
    "auto": AutoLoss,
}
KINDS: Mapping[str, Mapping[str, type[Model] | type[Loss]]] = {"model": _MODELS, "loss": _LOSSES}
"""Section to its kinds by tag."""


def _get(value: Any, key: str, default: Any) -> Any:
    return value.get(key, default) if isinstance(value, Mapping) else getattr(value, key, default)


def model_kind(model: Any) -> str:
    """The tag of a model: of an instance, or of a mapping of its keys."""
    name = _get(model, "name", Model.name)
    if _get(model, "cfg", "") or not isinstance(name, str):
        return "yolo"
    return next(tag for tag, kind in _MODELS.items() if re.search(kind.pattern, name))


def loss_kind(loss: Any) -> str:
    """The tag of a loss: of an instance, or of a mapping of its keys."""
    return str(_get(loss, "name", "auto"))


def losses_of(model: Any) -> tuple[str, ...]:
    """The losses that a model can be trained with, the one it was published with first."""
    kind = model_kind(model)
    if kind == "yolo":
        if _get(model, "cfg", ""):
            return ("cfg", "yolov3", "yolov4")
        older = str(_get(model, "name", Model.name)).startswith("yolov3")
        return ("yolov3", "yolov4") if older else ("yolov4", "yolov3")
    if kind == "custom":
        return ("auto", *(name for name in _LOSSES if name != "auto"))
    return {"anchor-free": ("anchor-free",), "torchvision": ("published",)}.get(
        kind, ("cross-entropy", "focal")
    )


def resolved_loss(loss: Loss, model: Model) -> Loss:
    """A loss without a name as the one that the model was published with.

    Raises:
        PydanticCustomError: a key that the model's loss does not have.
    """
    kind = losses_of(model)[0]
    if not isinstance(loss, AutoLoss) or kind == "auto":
        return loss
    given = {key: value for key, value in vars(loss).items() if value != "auto"}
    for key in given.keys() - _keys(_LOSSES[kind]):
        raise clash(foreign("loss", key, kind, ""), f"loss.{key}")
    return _LOSSES[kind](name=kind, **given)


def foreign(section: str, key: str, kind: str, model: str) -> str:
    """The message about a key that only other kinds have.

    Args:
        section: ``model`` or ``loss``.
        key: inside the section.
        kind: the tag of the recipe's model or loss.
        model: the model's name.
    """
    outer = key.partition(".")[0]
    having = [tag for tag, one in KINDS[section].items() if outer in _keys(one)]
    having = [tag for tag in having if tag not in ("custom", "auto")]
    if section == "loss":
        who = f"only {_listed(having, 'and')} {'has' if len(having) == 1 else 'have'} it"
        return f"key 'loss.{key}': {who}; this model's loss is {kind}"
    who = f"only {_listed([_MODELS[tag].label for tag in having], 'or')} has it"
    return f"key 'model.{key}': {who}; '{model}' is {_MODELS[kind].label}"


def _keys(kind: type) -> frozenset[str]:
    return frozenset(one.name for one in fields(kind))


def _listed(words: list[str], joint: str) -> str:
    return f" {joint} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


AnyModel = Annotated[
    Annotated[YoloModel, Tag("yolo")]
    | Annotated[AnchorFreeModel, Tag("anchor-free")]
    | Annotated[TorchvisionModel, Tag("torchvision")]
    | Annotated[ResnetModel, Tag("resnet")]
    | Annotated[DensenetModel, Tag("densenet")]
    | Annotated[TimmModel, Tag("timm")]
    | Annotated[CustomModel, Tag("custom")],
    Discriminator(model_kind),
]
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
