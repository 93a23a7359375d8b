"""DenseNet (Huang et al., 2017, "Densely Connected Convolutional Networks"), as published or with options.

Every layer reads the feature maps of all earlier layers in its block and adds a few. The state dict of a
published variant has the same names and shapes as in torchvision and timm, so their weights fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.models.layers import Activation, activate
from rankless.recipe import model_kinds

_CIFAR_BLOCKS = 3
BOTTLENECK = 4  # channels of the 1×1 convolution, as a multiple of the growth


@dataclass(frozen=True)
class Variant:
    """The architecture of a DenseNet.

    Attributes:
        blocks: number of layers in each dense block. The transition between two blocks halves the resolution.
        growth: number of channels that each layer adds (k).
        stem: ``imagenet`` is a 7×7 convolution with stride 2 and 3×3 max pooling with stride 2, which divide
            the resolution by 4; ``small`` is a 3×3 convolution that keeps the resolution.
        compression: fraction of the channels that a transition keeps (θ).
        bottleneck: whether each layer has a 1×1 convolution to 4k channels before its 3×3 convolution.
        separable: options for depthwise-separable 3×3 convolutions.
        first: channels of the stem; None means 2k.
    """

    blocks: tuple[int, ...]
    growth: int
    stem: Literal["imagenet", "small"] = "imagenet"
    compression: float = 0.5
    bottleneck: bool = True
    separable: model_kinds.Separable = field(default_factory=model_kinds.Separable)
    first: int | None = None

    @property
    def least_side(self) -> int:
        """The smallest input side, in pixels, that leaves one pixel for the last block."""
        factor: int = 2 ** (len(self.blocks) - 1)  # the transitions divide the resolution by this
        return factor if self.stem == "small" else 4 * (factor - 1) + 1

    def with_options(self, options: model_kinds.Densenet) -> Variant:
        """Return a copy with the recipe's options; ``auto`` leaves a value unchanged."""
        bottleneck = self.bottleneck if options.bottleneck == "auto" else options.bottleneck
        return replace(
            self,
            blocks=self.blocks if options.depth == "auto" else self._blocks(options.depth, bottleneck),
            growth=self.growth if options.growth == "auto" else options.growth,
            stem=self.stem if options.stem == "auto" else options.stem,
            compression=self.compression if options.compression == "auto" else options.compression,
            bottleneck=bottleneck,
            separable=options.separable,
        )

    def _blocks(self, depth: int, bottleneck: bool) -> tuple[int, ...]:
        if len(self.blocks) != _CIFAR_BLOCKS:
            raise UserError(
                f"'model.densenet.depth' is {depth}, but only the DenseNets for CIFAR have this option; "
                "remove it, and set model.name to densenet121, densenet161, densenet169, densenet201 or, for "
                "CIFAR, a name such as densenet-40-12"
            )
        convolutions = 2 if bottleneck else 1
        layers, left = divmod(depth - 4, _CIFAR_BLOCKS * convolutions)
        if left or layers < 1:
            step = _CIFAR_BLOCKS * convolutions
            below = max(1, layers) * step + 4
            of = "with" if bottleneck else "without"
            raise UserError(
                f"'model.densenet.depth' is {depth}; expected {step}n + 4 for a DenseNet {of} bottlenecks, "
                f"such as {below} or {below + step}"
            )
        return (layers,) * _CIFAR_BLOCKS


# Without bottlenecks: three blocks of (L - 4) / 3 layers after a stem of 16 channels.
_PLAIN_40_12 = Variant(
    blocks=(12, 12, 12), growth=12, stem="small", compression=1.0, bottleneck=False, first=16
)
PUBLISHED = {
    # Table 1 of the paper; 161 is the authors' wider network, with k = 48.
    "densenet121": Variant(blocks=(6, 12, 24, 16), growth=32),
    "densenet161": Variant(blocks=(6, 12, 36, 24), growth=48),
    "densenet169": Variant(blocks=(6, 12, 32, 32), growth=32),
    "densenet201": Variant(blocks=(6, 12, 48, 32), growth=32),
    # Table 2, on CIFAR: plain DenseNets …
    "densenet-40-12": _PLAIN_40_12,
    "densenet-100-12": replace(_PLAIN_40_12, blocks=(32, 32, 32)),
    "densenet-100-24": replace(_PLAIN_40_12, blocks=(32, 32, 32), growth=24),
    # … and DenseNet-BC of depth L: three blocks of (L - 4) / 6 layers of two convolutions each.
    "densenet-bc-100-12": Variant(blocks=(16, 16, 16), growth=12, stem="small"),
    "densenet-bc-190-40": Variant(blocks=(31, 31, 31), growth=40, stem="small"),
}


class SeparableConv(nn.Module):
    """A depthwise 3×3 and a 1×1 convolution, which together replace a 3×3 convolution of stride 1."""

    def __init__(self, channels_in: int, channels: int, options: model_kinds.Separable) -> None:
        super().__init__()
        self.depthwise = _convolution(
            channels_in, channels_in, 3, groups=channels_in, dilation=options.dilation
        )
        self.norm = nn.BatchNorm2d(channels_in) if options.norm_between else nn.Identity()
        # "linear" preserves the variance, because no activation between the two convolutions halves it.
        self.pointwise = _convolution(channels_in, channels, 1, after="linear")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.pointwise(self.norm(self.depthwise(x)))
        return out


class DenseLayer(nn.Module):
    """A layer of norm, activation and 3×3 convolution, after an optional bottleneck (a 1×1 convolution)."""

    def __init__(self, channels: int, variant: Variant, activation: Activation, dropout: float) -> None:
        super().__init__()
        self.bottleneck = variant.bottleneck
        if self.bottleneck:
            self.norm1 = nn.BatchNorm2d(channels)
            self.activation1 = activate(activation)
            self.conv1 = _convolution(channels, BOTTLENECK * variant.growth, 1)
            channels = BOTTLENECK * variant.growth
        self.norm2 = nn.BatchNorm2d(channels)
        self.activation2 = activate(activation)
        self.conv2 = (
            SeparableConv(channels, variant.growth, variant.separable)
            if variant.separable.dilation
            else _convolution(channels, variant.growth, 3)
        )
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, channels, H, W) to the new feature maps (B, growth, H, W)."""
        if self.bottleneck:
            x = self.conv1(self.activation1(self.norm1(x)))
        new: Tensor = self.conv2(self.activation2(self.norm2(x)))
        return F.dropout(new, self.dropout, self.training) if self.dropout else new


class DenseBlock(nn.Sequential):
    """A sequence of layers, each of which reads the block's input and the outputs of all earlier layers."""

    def __init__(
        self, layers: int, channels: int, variant: Variant, activation: Activation, dropout: float
    ) -> None:
        super().__init__()
        for number in range(layers):
            layer = DenseLayer(channels + number * variant.growth, variant, activation, dropout)
            self.add_module(f"denselayer{number + 1}", layer)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, channels, H, W) to (B, channels + layers * growth, H, W). The input comes first."""
        for layer in self:
            x = torch.cat((x, layer(x)), 1)
        return x


class Transition(nn.Sequential):
    """A layer of norm, activation, 1×1 convolution and 2×2 average pooling, which halves the resolution."""

    def __init__(self, channels_in: int, channels: int, activation: Activation) -> None:
        super().__init__()
        self.add_module("norm", nn.BatchNorm2d(channels_in))
        self.add_module("activation", activate(activation))
        self.add_module("conv", _convolution(channels_in, channels, 1))
        self.add_module("pool", nn.AvgPool2d(2))


class DenseNet(nn.Module):
    """A DenseNet classifier.

    Convolutions have no bias and are initialized as in He et al. (2015), "Delving Deep into Rectifiers".
    Dropout applies to each layer's new features, but not to those of earlier layers.
    """

    def __init__(
        self, variant: Variant, classes: int, *, activation: Activation = "relu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        channels = variant.first or 2 * variant.growth
        self.features = _stem(variant.stem, channels, activation)
        for number, layers in enumerate(variant.blocks, start=1):
            block = DenseBlock(layers, channels, variant, activation, dropout)
            self.features.add_module(f"denseblock{number}", block)
            channels += layers * variant.growth
            if number < len(variant.blocks):
                left = max(1, int(channels * variant.compression))
                self.features.add_module(f"transition{number}", Transition(channels, left, activation))
                channels = left
        # The published state dicts call the last norm norm5, regardless of the number of blocks.
        self.features.add_module("norm5", nn.BatchNorm2d(channels))
        self.features.add_module("activation5", activate(activation))
        self.classifier = nn.Linear(channels, classes)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits (B, classes) of normalized images (B, 3, H, W)."""
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def _stem(kind: Literal["imagenet", "small"], channels: int, activation: Activation) -> nn.Sequential:
    stem = nn.Sequential()
    if kind == "small":
        stem.add_module("conv0", _convolution(3, channels, 3))
        return stem
    stem.add_module("conv0", _convolution(3, channels, 7, stride=2))
    stem.add_module("norm0", nn.BatchNorm2d(channels))
    stem.add_module("activation0", activate(activation))
    stem.add_module("pool0", nn.MaxPool2d(3, stride=2, padding=1))
    return stem


def _convolution(
    channels_in: int,
    channels: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    dilation: int = 1,
    after: Literal["relu", "linear"] = "relu",
) -> nn.Conv2d:
    """Build a convolution, initialized for inputs that come from a linear layer or a ReLU (``after``)."""
    padding = kernel // 2 * dilation
    conv = nn.Conv2d(channels_in, channels, kernel, stride, padding, dilation, groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, nonlinearity=after)
    return conv
