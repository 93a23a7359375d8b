"""The kinds of model, each with the keys that have an effect on it and no others.

A recipe's ``model`` is a tagged union of these classes; the kind follows from ``model.name``, or from
``model.cfg``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic.dataclasses import dataclass

from rankless.recipe.fields import (
    Activation,
    Anchors,
    Duration,
    Name,
    ProperFraction,
    Side,
    Size,
    Text,
    by_tag,
    clash,
    config,
    get,
)


@dataclass(frozen=True, config=config)
class Model:
    """The network; its kind follows from ``name``, and each kind has its own keys.

    ``Model(name=…, …)`` is an instance of that kind.

    Attributes:
        name: one that ``rankless models`` lists, or ``timm/NAME``.
        image_size: the network's input in pixels: one side, or [height, width]; multiples of 32 in a
            detector; ``auto`` is the size the model was published with.
        pretrained: weights to start from: a run, a file that Rankless wrote or imported, or ``timm``; they
            bring their network where neither ``name`` nor ``cfg`` is given.
        freeze: how long the backbone is frozen: steps, or as in ``5 epochs`` or ``10%`` (of the run).
        checkpointing: activation checkpointing: blocks are computed again in the backward pass instead of
            keeping what they computed; less memory, more time, the same bits.
    """

    label: ClassVar[str] = ""  # with an article, for messages
    pattern: ClassVar[str] = ""  # of the names that belong to this kind

    name: Name = "yolov4-tiny"
    image_size: Literal["auto"] | Side | Size = "auto"
    pretrained: Text = ""
    freeze: Duration = 0
    checkpointing: bool = False

    def __new__(cls, *args: Any, **keys: Any) -> Self:
        """Choose the kind by the keys."""
        kind: Any = MODELS[model_kind(keys)] if cls is Model else cls
        made: Self = object.__new__(kind)
        return made

    @model_validator(mode="after")
    def _name_is_of_this_kind(self) -> Self:
        if (kind := MODELS[model_kind(vars(self))]) is not type(self):
            raise clash(
                f"'model.name' is '{self.name}', which is {kind.label}, not {self.label}; expected the name "
                f"of {self.label}",
                "name",
            )
        return self


@dataclass(frozen=True, config=config)
class Involution:
    """Involution before the heads (Li et al., 2021); ``model.involution: 7`` sets the kernel.

    Attributes:
        kernel: side of its kernels in pixels; 0 disables it.
        where: ``head`` inserts one in front of each head alone; ``trunk`` replaces the map, so that the next
            up- or down-sampling reads the involution's output as well.
    """

    kernel: Literal[0, 3, 5, 7] = 0
    where: Literal["head", "trunk"] = "head"

    @model_validator(mode="after")
    def _where_has_an_effect(self) -> Self:
        if self.where == "trunk" and not self.kernel:
            raise clash(
                "'model.involution.where' is 'trunk', but 'model.involution.kernel' is 0, which disables "
                "involution; expected a kernel of 3, 5 or 7",
                "where",
            )
        return self


@dataclass(frozen=True, config=config)
class _ConvolutionalDetector(Model):
    """The keys of every detector built from this project's layers.

    Attributes:
        width: factor on every channel count of the backbone and the neck.
        dropout: fraction of the channels dropped before each head's last convolution.
        activation: replaces the published one everywhere; ``auto`` leaves it.
        involution: its options.
    """

    width: Annotated[float, Field(gt=0, le=64)] = 1.0
    dropout: ProperFraction = 0.0
    activation: Activation = "auto"
    involution: Involution = field(default_factory=Involution)


@dataclass(frozen=True, config=config)
class YoloModel(_ConvolutionalDetector):
    """A YOLO detector with anchors.

    Attributes:
        cfg: a Darknet cfg file that describes the network in place of ``name``, or its text.
        anchors: ``default`` (published), ``kmeans`` (from the training boxes), or [[width, height], …] in
            pixels of the input, the smallest first.
        num_anchors: anchors per head; ``auto`` is as published. The finest map takes the first ones.
        scale_xy: how far a center may lie beyond its cell, Darknet's ``scale_x_y`` of every head: the center
            is ``s·σ(t) - (s - 1)/2`` cells from the cell's corner; ``auto`` is as published.
    """

    label: ClassVar[str] = "a YOLO model"
    pattern: ClassVar[str] = r"^yolo(?!.*-anchor-free$)"

    cfg: Text = ""
    anchors: Literal["default", "kmeans"] | Anchors = "default"
    num_anchors: Literal["auto"] | Annotated[int, Field(ge=1, le=100)] = "auto"
    scale_xy: Literal["auto"] | Annotated[float, Field(ge=1, le=100)] = "auto"

    @model_validator(mode="after")
    def _anchors_are_pixels(self) -> Self:
        if not isinstance(self.anchors, str) and (least := min(map(min, self.anchors))) < 1:
            size = self.image_size if isinstance(self.image_size, int) else 416
            first = [round(side * size, 1) for side in self.anchors[0]]
            raise clash(
                f"'model.anchors' has a side of {least:g} pixels; expected sides of at least 1 pixel of the "
                f"input; fractions of the image are multiplied by its size: at {size} pixels the first pair "
                f"is {first}",
                "anchors",
            )
        return self


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
            layers of a block would share.
    """

    label: ClassVar[str] = "a ResNet"
    pattern: ClassVar[str] = r"^resnet"

    dropout: ProperFraction = 0.0
    activation: Literal["auto", "leaky", "mish", "swish", "relu"] = "auto"


@dataclass(frozen=True, config=config)
class Separable:
    """Depthwise-separable 3×3 convolutions of a DenseNet; ``separable: true`` is a dilation of 1.

    Attributes:
        dilation: of the depthwise convolution, whose output keeps its size; 0 leaves ordinary convolutions.
        norm_between: a batch norm between the depthwise and the 1×1 convolution.
    """

    dilation: Literal[0, 1, 2] = 0
    norm_between: bool = False

    @model_validator(mode="after")
    def _norm_has_an_effect(self) -> Self:
        if self.norm_between and not self.dilation:
            raise clash(
                "'model.densenet.separable.norm_between' is true, but 'model.densenet.separable.dilation' "
                "is 0, which leaves ordinary convolutions; expected a dilation of 1 or 2",
                "norm_between",
            )
        return self


@dataclass(frozen=True, config=config)
class Densenet:
    """The options of a DenseNet; ``auto`` is as published.

    Attributes:
        depth: number of layers, of CIFAR's networks: 3n + 4, or 6n + 4 with bottlenecks.
        growth: channels that each layer adds.
        compression: fraction of the channels that remain after a transition.
        bottleneck: a 1×1 convolution before each 3×3.
        stem: ``imagenet`` (7×7 with stride 2 and pooling) or ``small`` (3×3, for images of some 32 pixels).
        separable: depthwise-separable 3×3 convolutions.
    """

    depth: Literal["auto"] | Annotated[int, Field(ge=7, le=2000)] = "auto"
    growth: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = "auto"
    compression: Literal["auto"] | Annotated[float, Field(gt=0, le=1)] = "auto"
    bottleneck: Literal["auto"] | bool = "auto"
    stem: Literal["auto", "imagenet", "small"] = "auto"
    separable: Separable = field(default_factory=Separable)


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
class DarknetClassifierModel(Model):
    """Darknet-53 or CSPDarknet-53.

    Attributes:
        dropout: fraction of the features dropped before the last layer.
        activation: replaces the published one everywhere; ``auto`` leaves it.
    """

    label: ClassVar[str] = "one of Darknet's classifiers"
    pattern: ClassVar[str] = r"^(csp)?darknet53$"

    dropout: ProperFraction = 0.0
    activation: Activation = "auto"


@dataclass(frozen=True, config=config)
class CustomModel(_ConvolutionalDetector):
    """A model that only a custom task knows: every key is allowed.

    Attributes:
        cfg, anchors, num_anchors, scale_xy, dfl, densenet: as in the models that have them.
    """

    label: ClassVar[str] = "a custom model"

    cfg: Text = ""
    anchors: Literal["default", "kmeans"] | Anchors = "default"
    num_anchors: Literal["auto"] | Annotated[int, Field(ge=1, le=100)] = "auto"
    scale_xy: Literal["auto"] | Annotated[float, Field(ge=1, le=100)] = "auto"
    dfl: Annotated[int, Field(ge=0, le=1024)] = 0
    densenet: Densenet = field(default_factory=Densenet)


def model_kind(model: Any) -> str:
    """Return the tag of a model, which is an instance or a mapping of its keys."""
    name = get(model, "name", Model.name)
    if get(model, "cfg", "") or not isinstance(name, str):
        return "yolo"
    return next(tag for tag, kind in MODELS.items() if re.search(kind.pattern, name))


AnyModel = Annotated[
    Annotated[YoloModel, Tag("yolo")]
    | Annotated[AnchorFreeModel, Tag("anchor-free")]
    | Annotated[TorchvisionModel, Tag("torchvision")]
    | Annotated[ResnetModel, Tag("resnet")]
    | Annotated[DensenetModel, Tag("densenet")]
    | Annotated[DarknetClassifierModel, Tag("darknet")]
    | Annotated[TimmModel, Tag("timm")]
    | Annotated[CustomModel, Tag("custom")],
    Discriminator(model_kind),
]
MODELS: Mapping[str, type[Model]] = by_tag(AnyModel)
"""Tag to kind."""
