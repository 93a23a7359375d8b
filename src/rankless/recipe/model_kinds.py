"""The kinds of model, each with exactly the keys that affect it.

A recipe's ``model`` is a tagged union of these classes. ``model.name`` or ``model.cfg`` determines the kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag
from pydantic.dataclasses import dataclass

from rankless.recipe.fields import (
    PREDICTING,
    TRAINING,
    Activation,
    Anchors,
    Bool,
    Duration,
    Float,
    Int,
    Name,
    NoBool,
    Only,
    Options,
    ProperFraction,
    Side,
    Size,
    Text,
    by_tag,
    config,
    get,
    given,
)
from rankless.recipe.loss_kinds import LOSSES, AutoLoss, LossKeys

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's training images, from 0 to 1, for red, green and blue."""


@dataclass(frozen=True, config=config)
class ModelKeys:
    """The network. ``name`` determines its kind, and each kind has its own keys."""

    label: ClassVar[str] = ""  # with an article, for messages
    pattern: ClassVar[str] = ""  # matches the names of this kind
    losses: ClassVar[tuple[str, ...]] = ("cross-entropy", "focal")

    name: Name = "yolov4-tiny"
    """Name of a model that ``rankless models`` lists, ``timm/NAME``, or a detector family of your own,
    ``package.module:Family`` or ``file.py:Family``."""
    image_size: Annotated[Literal["auto"] | Side | Size, PREDICTING] = "auto"
    """Size of the network's input in pixels: one side, or [height, width]; multiples of 32 for a detector;
    ``auto`` is the size the model was published with."""
    pretrained: Annotated[Text, TRAINING] = ""
    """Weights to start from: a run, a file that Rankless wrote or imported, a transformers model folder, or,
    to download them, ``hf://OWNER/NAME`` (a transformers model), ``hf://OWNER/NAME/FILE``, ``published``,
    ``published/NAME`` or ``timm``. Without ``name`` and ``cfg``, the network is that of the weights."""
    freeze: Annotated[Duration, TRAINING] = 0
    """How long the backbone is frozen: steps, or a duration such as ``5 epochs`` or ``10%`` (of the run)."""
    checkpointing: Bool = False
    """Activation checkpointing: the backward pass recomputes activations instead of storing them. This saves
    memory, takes more time, and gives the same bits."""

    def input_size(self) -> tuple[int, int] | None:
        """Return ``image_size`` as (height, width), or None if it is ``auto``."""
        if self.image_size == "auto":
            return None
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size


@dataclass(frozen=True, config=config)
class Involution:
    """Involution before the heads (Li et al., 2021); ``model.involution: 7`` sets the kernel size to 7."""

    kernel: Annotated[Literal[0, 3, 5, 7], NoBool] = 0
    """Kernel size in pixels; 0 disables involution."""
    where: Annotated[Literal["head", "trunk"], Only("model.involution.kernel", (3, 5, 7))] = "head"
    """``head`` inserts an involution before each head only; with ``trunk``, the next up- or down-sampling
    also reads its output."""


@dataclass(frozen=True, config=config)
class _ConvolutionalDetector(ModelKeys):
    """Keys that all of this project's convolutional detectors have."""

    width: Annotated[Float, Field(gt=0, le=64)] = 1.0
    """Multiplier of the number of channels in backbone and neck."""
    dropout: ProperFraction = 0.0
    """Fraction of the channels dropped before each head's last convolution."""
    activation: Activation = "auto"
    """Activation function of all layers; ``auto`` keeps the published ones."""
    involution: Involution = field(default_factory=Involution)
    """Involution before the heads."""


@dataclass(frozen=True, config=config)
class YoloModel(_ConvolutionalDetector):
    """A YOLO detector with anchors."""

    label: ClassVar[str] = "a YOLO model"
    pattern: ClassVar[str] = r"^yolo(?!.*-anchor-free$)"
    losses: ClassVar[tuple[str, ...]] = ("yolov4", "yolov3")

    cfg: Text = ""
    """A Darknet cfg file, or its text. It defines the network instead of ``name``."""
    anchors: Literal["default", "kmeans"] | Anchors = "default"
    """``default`` (published), ``kmeans`` (from the training boxes), or [[width, height], …] in pixels of the
    input, smallest first."""
    num_anchors: Literal["auto"] | Annotated[Int, Field(ge=1, le=100)] = "auto"
    """Number of anchors per head; ``auto`` is the published number. The finest feature map gets the first
    anchors."""
    scale_xy: Literal["auto"] | Annotated[Float, Field(ge=1, le=100)] = "auto"
    """Darknet's ``scale_x_y`` of every head. A box's center is ``s·σ(t) - (s - 1)/2`` cells from its cell's
    corner, so for s > 1 it may be outside the cell; ``auto`` is the published value."""


@dataclass(frozen=True, config=config)
class AnchorFreeModel(_ConvolutionalDetector):
    """A detector with anchor-free heads."""

    label: ClassVar[str] = "an anchor-free model"
    pattern: ClassVar[str] = r"^yolo.*-anchor-free$"
    losses: ClassVar[tuple[str, ...]] = ("anchor-free",)

    dfl: Annotated[Int, Field(ge=0, le=1024)] = 0
    """Number of bins per distance to a box's side, for the distribution focal loss; 0 predicts the distances
    directly."""


@dataclass(frozen=True, config=config)
class TorchvisionModel(ModelKeys):
    """A detector from torchvision."""

    label: ClassVar[str] = "a torchvision model"
    pattern: ClassVar[str] = r"^torchvision/"
    losses: ClassVar[tuple[str, ...]] = ("published",)


@dataclass(frozen=True, config=config)
class TransformersModel(ModelKeys):
    """A detector from transformers."""

    label: ClassVar[str] = "a transformers model"
    pattern: ClassVar[str] = r"^hf/"
    losses: ClassVar[tuple[str, ...]] = ("published",)

    config: Text = ""
    """For the name ``hf/config``: the ``config.json`` of a transformers detector, its folder or its text."""
    normalize: Literal["auto", "none", "imagenet"] = "auto"
    """Normalization of the input: ``none`` keeps values from 0 to 1, ``imagenet`` uses ImageNet's mean and
    standard deviation, and ``auto`` is the published one."""


@dataclass(frozen=True, config=config)
class _WithOptions(ModelKeys):
    options: Options = field(default_factory=dict)
    """Options of your own detector family or task, which its class defines, as in ``options: {channels: 16}``
    or ``model.options.channels=16``."""


@dataclass(frozen=True, config=config)
class FamilyModel(_WithOptions):
    """A detector of your own family, ``package.module:Family`` or ``file.py:Family``."""

    label: ClassVar[str] = "a detector family of your own"
    pattern: ClassVar[str] = r"^([^:]+\.py|[^\W\d]\w*(\.\w+)*):\w+$"
    losses: ClassVar[tuple[str, ...]] = ("published",)


@dataclass(frozen=True, config=config)
class TimmModel(ModelKeys):
    """A classifier from timm."""

    label: ClassVar[str] = "a timm model"
    pattern: ClassVar[str] = r"^timm/"

    dropout: ProperFraction = 0.0
    """Fraction of the features dropped before the last layer."""


@dataclass(frozen=True, config=config)
class ResnetModel(ModelKeys):
    """A ResNet classifier."""

    label: ClassVar[str] = "a ResNet"
    pattern: ClassVar[str] = r"^resnet"

    dropout: ProperFraction = 0.0
    """Fraction of the features dropped before the last layer."""
    activation: Literal["auto", "leaky", "mish", "swish", "relu"] = "auto"
    """Activation function of all layers; ``auto`` keeps the published one. ``prelu`` is not possible, because
    the layers of a block would share its slope."""


@dataclass(frozen=True, config=config)
class Separable:
    """Depthwise-separable 3×3 convolutions of a DenseNet. ``separable: true`` sets ``dilation`` to 1."""

    dilation: Annotated[Literal[0, 1, 2], NoBool] = 0
    """Dilation of the depthwise convolution, which keeps the feature map's size; 0 uses ordinary convolutions
    instead."""
    norm_between: Annotated[Bool, Only("model.densenet.separable.dilation", (1, 2))] = False
    """Insert a batch norm between the depthwise and the 1×1 convolution."""


@dataclass(frozen=True, config=config)
class Densenet:
    """Options of a DenseNet. ``auto`` is the published value."""

    depth: Literal["auto"] | Annotated[Int, Field(ge=7, le=2000)] = "auto"
    """Number of layers; for CIFAR's networks 3n + 4, or 6n + 4 with bottlenecks."""
    growth: Literal["auto"] | Annotated[Int, Field(ge=1, le=4096)] = "auto"
    """Number of channels that each layer adds."""
    compression: Literal["auto"] | Annotated[Float, Field(gt=0, le=1)] = "auto"
    """Fraction of the channels that a transition layer keeps."""
    bottleneck: Literal["auto"] | Bool = "auto"
    """Insert a 1×1 convolution before each 3×3 convolution."""
    stem: Literal["auto", "imagenet", "small"] = "auto"
    """``imagenet`` (7×7 with stride 2 and pooling) or ``small`` (3×3, for images of about 32 pixels)."""
    separable: Separable = field(default_factory=Separable)
    """Depthwise-separable 3×3 convolutions."""


@dataclass(frozen=True, config=config)
class DensenetModel(ModelKeys):
    """A DenseNet classifier."""

    label: ClassVar[str] = "a DenseNet"
    pattern: ClassVar[str] = r"^densenet"

    dropout: ProperFraction = 0.0
    """Fraction of each layer's new features that is dropped."""
    activation: Activation = "auto"
    """Activation function of all layers; ``auto`` keeps the published ones."""
    densenet: Densenet = field(default_factory=Densenet)
    """Options of the DenseNet."""


@dataclass(frozen=True, config=config)
class DarknetClassifierModel(ModelKeys):
    """A Darknet-53 or CSPDarknet-53 classifier."""

    label: ClassVar[str] = "one of Darknet's classifiers"
    pattern: ClassVar[str] = r"^(csp)?darknet53$"

    dropout: ProperFraction = 0.0
    """Fraction of the features dropped before the last layer."""
    activation: Activation = "auto"
    """Activation function of all layers; ``auto`` keeps the published ones."""


@dataclass(frozen=True, config=config)
class CustomModel(DensenetModel, AnchorFreeModel, YoloModel, TransformersModel, _WithOptions):
    """A model of a custom task. All keys are allowed."""

    label: ClassVar[str] = "a custom model"
    pattern: ClassVar[str] = ""
    losses: ClassVar[tuple[str, ...]] = ("auto", *(name for name in LOSSES if name != "auto"))


def model_kind(model: Any) -> str:
    """Return the tag of a model, which is an instance or a mapping."""
    name = get(model, "name", ModelKeys.name)
    if get(model, "cfg", "") or not isinstance(name, str):
        return "yolo"
    return next(tag for tag, kind in MODELS.items() if re.search(kind.pattern, name))


AnyModel = Annotated[
    Annotated[YoloModel, Tag("yolo")]
    | Annotated[AnchorFreeModel, Tag("anchor-free")]
    | Annotated[TorchvisionModel, Tag("torchvision")]
    | Annotated[TransformersModel, Tag("transformers")]
    | Annotated[ResnetModel, Tag("resnet")]
    | Annotated[DensenetModel, Tag("densenet")]
    | Annotated[DarknetClassifierModel, Tag("darknet")]
    | Annotated[TimmModel, Tag("timm")]
    | Annotated[FamilyModel, Tag("family")]
    | Annotated[CustomModel, Tag("custom")],
    Discriminator(model_kind),
]
MODELS: Mapping[str, type[ModelKeys]] = by_tag(AnyModel)
"""Maps each tag to its model class."""


def Model(**keys: Any) -> ModelKeys:  # noqa: N802 (it stands where a class would)
    """Return a ``model`` section with these keys. ``name`` or ``cfg`` determines its kind."""
    return MODELS[model_kind(keys)](**keys)


def losses_of(model: Any) -> tuple[str, ...]:
    """List the losses that a model can be trained with, the published one first."""
    if get(model, "cfg", ""):
        return ("cfg", "yolov3", "yolov4")
    losses = MODELS[model_kind(model)].losses
    return losses[::-1] if str(get(model, "name", ModelKeys.name)).startswith("yolov3") else losses


def loss_of(model: Any, loss: LossKeys | None = None) -> LossKeys:
    """Return the loss for a model. A loss without a name becomes the model's published one."""
    name = losses_of(model)[0]
    if (loss and loss.name != "auto") or name == "auto":
        return loss or AutoLoss()
    return LOSSES[name](**{**given(loss or {}), "name": name})
