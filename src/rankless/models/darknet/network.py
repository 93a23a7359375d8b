"""Descriptions of convolutional detectors as chains of layers, which may also read earlier layers' outputs.

The layers and their numbers match Darknet's cfg files. Published networks, users' cfg files and modified
copies (with a different width, or different anchors or heads) all have the same type.
:mod:`rankless.models.detectors.convolutional` builds a network from its description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from rankless.models.heads.anchor_free.codec import AnchorFreeHead
from rankless.models.heads.yolo.codec import HeadLoss, YoloHead
from rankless.models.layers import Activation

IMAGE = -1
"""Layer number of the network's input. Other layers are numbered from 0."""
PublishedLoss = Literal["yolov3", "yolov4", "anchor-free"]
DETECTOR_CHANNELS = 5  # tx, ty, tw, th, objectness


@dataclass(frozen=True)
class Conv:
    """A ``[convolutional]`` layer. With batch norm, it has no bias.

    ``padding`` is the number of pixels on each side, before dilation. None keeps the resolution at stride 1.
    """

    filters: int
    size: int = 1
    stride: int = 1
    activation: Activation = "leaky"
    norm: bool = True
    groups: int = 1
    padding: int | None = None
    dilation: int = 1

    @property
    def pixels(self) -> int:
        """The padding on each side, in pixels."""
        return (self.size // 2 if self.padding is None else self.padding) * self.dilation


@dataclass(frozen=True)
class MaxPool:
    """A ``[maxpool]`` layer. ``padding`` is the total in pixels; the smaller half is on the left and top."""

    size: int
    stride: int
    padding: int


@dataclass(frozen=True)
class AveragePool:
    """An ``[avgpool]`` layer, which averages each channel over all pixels."""


@dataclass(frozen=True)
class Upsample:
    """An ``[upsample]`` layer, which repeats pixels ``stride`` × ``stride`` times and scales their values."""

    stride: int = 2
    scale: float = 1.0


@dataclass(frozen=True)
class Route:
    """A ``[route]`` layer, which concatenates layers or, with ``groups``, a channel group of each layer."""

    layers: tuple[int, ...]
    groups: int = 1
    group: int = 0


@dataclass(frozen=True)
class Shortcut:
    """A ``[shortcut]`` layer, which adds the outputs of other layers to that of the previous layer.

    If the numbers of channels differ, only the common channels are added.
    """

    layers: tuple[int, ...]
    activation: Activation = "linear"


@dataclass(frozen=True)
class Multiply:
    """A ``[scale_channels]`` or ``[sam]`` layer, which multiplies the outputs of two layers.

    One of them is the previous layer.
    """

    layer: int
    activation: Activation = "linear"
    per_channel: bool = True


@dataclass(frozen=True)
class Dropout:
    """A ``[dropout]`` layer, which drops entire channels if ``whole`` is true, otherwise single values."""

    probability: float
    whole: bool = False


@dataclass(frozen=True)
class Involution:
    """An involution (Li et al., 2021); see :class:`rankless.models.layers.Involution`."""

    size: int


@dataclass(frozen=True)
class Yolo:
    """A ``[yolo]`` layer, which describes the output of the previous layer; see :class:`.codec.YoloHead`."""

    anchors: tuple[tuple[float, float], ...]
    mask: tuple[int, ...]
    scale_xy: float = 1.0
    new_coords: bool = False
    anchor_iou: float = 1.0
    loss: HeadLoss = field(default_factory=HeadLoss)


@dataclass(frozen=True)
class AnchorFree:
    """An anchor-free head; see :class:`~rankless.models.heads.anchor_free.layers.AnchorFreeHeadLayers`."""

    bins: int = 0
    activation: Activation = "swish"
    dropout: float = 0.0


Layer = (
    Conv
    | MaxPool
    | AveragePool
    | Upsample
    | Route
    | Shortcut
    | Multiply
    | Dropout
    | Involution
    | Yolo
    | AnchorFree
)


@dataclass(frozen=True)
class Shape:
    """The shape of a layer's output.

    ``stride`` is the number of input pixels per output pixel along each side, or None if the output is 1 × 1.
    """

    channels: int
    stride: Fraction | None


@dataclass(frozen=True)
class Network:
    """The description of a detector, layer by layer.

    Attributes:
        names: the layers' names in weights files. Published layers are numbered; inserted layers have
            different names, so that the numbers do not change.
        size: published (height, width) of the input in pixels.
        backbone: number of layers in the backbone, which comes first.
        loss: the loss that the network was published with.
    """

    layers: tuple[Layer, ...]
    names: tuple[str, ...]
    size: tuple[int, int]
    backbone: int
    classes: int
    loss: PublishedLoss

    def inputs(self, number: int) -> tuple[int, ...]:
        """Return the numbers of the layers whose outputs the layer ``number`` reads."""
        layer = self.layers[number]
        if isinstance(layer, Route):
            return layer.layers
        if isinstance(layer, Shortcut):
            return (number - 1, *layer.layers)
        if isinstance(layer, Multiply):
            return (layer.layer, number - 1)
        return (number - 1,)

    def shapes(self) -> list[Shape]:
        shapes: list[Shape] = []
        image = Shape(3, Fraction(1))
        for number, layer in enumerate(self.layers):
            read = [shapes[source] if source >= 0 else image for source in self.inputs(number)]
            shapes.append(shape(layer, read))
        return shapes

    def channels_in(self) -> list[int]:
        """Return the number of channels in the first input of every layer."""
        shapes = self.shapes()
        first = (self.inputs(number)[0] for number in range(len(self.layers)))
        return [shapes[source].channels if source >= 0 else 3 for source in first]

    def parameters(self) -> int:
        """Count the values in the convolutions and their norms, which are nearly all values in a network."""
        return sum(
            layer.filters * (channels // layer.groups * layer.size**2 + (4 if layer.norm else 1))
            for layer, channels in zip(self.layers, self.channels_in(), strict=True)
            if isinstance(layer, Conv)
        )

    def convolution_outputs(self, size: tuple[int, int]) -> list[int]:
        """Count the output values of each convolution for one image of ``size`` (height, width)."""
        counts = []
        for layer, made in zip(self.layers, self.shapes(), strict=True):
            if isinstance(layer, Conv):
                stride = made.stride or max(size)  # None means one pixel
                counts.append(made.channels * int(max(size[0] / stride, 1) * max(size[1] / stride, 1)))
        return counts

    def heads(self) -> tuple[YoloHead | AnchorFreeHead, ...]:
        """Return the descriptions of the heads, in the order of the model's outputs."""
        heads: list[YoloHead | AnchorFreeHead] = []
        for layer, made in zip(self.layers, self.shapes(), strict=True):
            stride = int(made.stride or 0)
            if isinstance(layer, Yolo):
                heads.append(
                    YoloHead(
                        anchors=layer.anchors,
                        mask=layer.mask,
                        stride=stride,
                        scale_xy=layer.scale_xy,
                        new_coords=layer.new_coords,
                        anchor_iou=layer.anchor_iou,
                        loss=layer.loss,
                    )
                )
            elif isinstance(layer, AnchorFree):
                heads.append(AnchorFreeHead(stride, layer.bins))
        return tuple(heads)

    @property
    def anchors(self) -> tuple[tuple[float, float], ...]:
        """The anchors that all heads share, as (width, height) in pixels. Empty if there are none."""
        return next((layer.anchors for layer in self.layers if isinstance(layer, Yolo)), ())

    def predictors(self) -> tuple[int, ...]:
        """Return the numbers of the convolutions whose output the ``[yolo]`` layers read."""
        return tuple(n - 1 for n, layer in enumerate(self.layers) if isinstance(layer, Yolo))


def shape(layer: Layer, read: Sequence[Shape]) -> Shape:
    """Return the output shape of a layer, given the shapes of its inputs."""
    first = read[0]
    if isinstance(layer, Conv):
        return Shape(layer.filters, first.stride and first.stride * layer.stride)
    if isinstance(layer, MaxPool):
        return Shape(first.channels, first.stride and first.stride * layer.stride)
    if isinstance(layer, AveragePool):
        return Shape(first.channels, None)
    if isinstance(layer, Upsample):
        return Shape(first.channels, first.stride and first.stride / layer.stride)
    if isinstance(layer, Route):
        return Shape(sum(one.channels // layer.groups for one in read), first.stride)
    return first


class Builder:
    """A builder for networks. Methods that add layers return the number of the last layer they added."""

    def __init__(self, activation: Activation = "leaky") -> None:
        self.layers: list[Layer] = []
        self.activation = activation

    @property
    def last(self) -> int:
        return len(self.layers) - 1

    def add(self, layer: Layer) -> int:
        self.layers.append(layer)
        return self.last

    def conv(self, filters: int, size: int = 1, stride: int = 1) -> int:
        """Add a convolution with batch norm and the current activation."""
        return self.add(Conv(filters, size, stride, self.activation))

    def convs(self, *filters: int) -> int:
        """Add alternating 1×1 and 3×3 convolutions."""
        for index, count in enumerate(filters):
            self.conv(count, 3 if index % 2 else 1)
        return self.last

    def residual(self, squeezed: int, channels: int) -> int:
        """Add a residual block: a 1×1 convolution to ``squeezed`` channels, then a 3×3 convolution."""
        before = self.last
        self.convs(squeezed, channels)
        return self.add(Shortcut((before,)))

    def route(self, *layers: int, groups: int = 1, group: int = 0) -> int:
        """Add a concatenation of earlier layers."""
        return self.add(Route(layers, groups, group))

    def pool(self, size: int, stride: int) -> int:
        """Add max pooling, padded as in Darknet."""
        return self.add(MaxPool(size, stride, size - 1))

    def head(self, channels: int, yolo: Yolo, classes: int, linear: Activation = "linear") -> int:
        """Add a head: a 3×3 convolution, a 1×1 convolution for the predictions, and their description."""
        self.conv(channels, 3)
        outputs = len(yolo.mask) * (DETECTOR_CHANNELS + classes)
        self.add(Conv(outputs, activation=linear, norm=False))
        return self.add(yolo)

    def network(self, side: int, backbone: int, classes: int, loss: PublishedLoss) -> Network:
        """Return the network for a square input of ``side`` pixels."""
        names = tuple(str(number) for number in range(len(self.layers)))
        return Network(tuple(self.layers), names, (side, side), backbone, classes, loss)
