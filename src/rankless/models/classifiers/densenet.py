"""DenseNet, as published and with options (Huang et al., 2017, "Densely Connected Convolutional Networks").

Every layer reads the maps of all layers before it and adds a few of its own. The names and shapes in the
state dict of a published variant are those of torchvision and timm, so that their weights fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankless.models.layers import Activation, activate
from rankless.recipe import model_kinds

BOTTLENECK = 4  # channels of the 1×1 convolution, in growths


@dataclass(frozen=True)
class Variant:
    """A DenseNet.

    Attributes:
        blocks: layers in each dense block; between two blocks a transition halves the resolution.
        growth: channels that each layer adds (k).
        stem: ``imagenet``, a 7×7 convolution with stride 2 and 3×3 max pooling with stride 2, which divides
            the resolution by 4, or ``small``, a 3×3 convolution that keeps it; either has 2k channels.
        compression: share of the channels that a transition keeps (θ).
        bottleneck: each layer has a 1×1 convolution to 4k channels before its 3×3.
        separable: the layers' 3×3 convolutions are depthwise-separable.
    """

    blocks: tuple[int, ...]
    growth: int
    stem: Literal["imagenet", "small"] = "imagenet"
    compression: float = 0.5
    bottleneck: bool = True
    separable: bool = False

    @property
    def least_side(self) -> int:
        """The smallest input side in pixels of which the last block still gets one pixel."""
        factor: int = 2 ** (len(self.blocks) - 1)  # by which the transitions divide the resolution
        return factor if self.stem == "small" else 4 * (factor - 1) + 1

    def with_options(self, options: model_kinds.Densenet) -> Variant:
        """This variant with what the recipe changes; ``auto`` leaves what is here."""
        return replace(
            self,
            growth=self.growth if options.growth == "auto" else options.growth,
            stem=self.stem if options.stem == "auto" else options.stem,
            compression=options.compression,
            bottleneck=options.bottleneck,
            separable=options.separable,
        )


# Table 1 of the paper; 161 is the authors' wider one, with k = 48.
DENSENET_121 = Variant(blocks=(6, 12, 24, 16), growth=32)
DENSENET_161 = Variant(blocks=(6, 12, 36, 24), growth=48)
DENSENET_169 = Variant(blocks=(6, 12, 32, 32), growth=32)
DENSENET_201 = Variant(blocks=(6, 12, 48, 32), growth=32)
# Table 2, DenseNet-BC of depth L: three blocks of (L - 4) / 6 layers of two convolutions each.
DENSENET_BC_100_12 = Variant(blocks=(16, 16, 16), growth=12, stem="small")
DENSENET_BC_190_40 = Variant(blocks=(31, 31, 31), growth=40, stem="small")


class SeparableConv(nn.Module):
    """A depthwise 3×3 convolution, then a 1×1: takes a 3×3 convolution's place and keeps the size.

    Args:
        channels_in, channels: of the input and of the output.
    """

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.depthwise = _convolution(channels_in, channels_in, 3, groups=channels_in)
        # No activation stands between the two and takes half of the variance.
        self.pointwise = _convolution(channels_in, channels, 1, after="linear")

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, H, W) -> (B, channels, H, W)."""
        out: Tensor = self.pointwise(self.depthwise(x))
        return out


class DenseLayer(nn.Module):
    """Norm, activation, 1×1 convolution (the bottleneck); norm, activation, 3×3 convolution.

    Args:
        channels: of the input.
        variant: growth, bottleneck and kind of convolution.
        activation: after each norm.
        dropout: share dropped of the numbers that the layer adds.
    """

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
        convolution = SeparableConv if variant.separable else _conv3x3
        self.conv2 = convolution(channels, variant.growth)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """The new maps alone: (B, channels, H, W) -> (B, growth, H, W)."""
        if self.bottleneck:
            x = self.conv1(self.activation1(self.norm1(x)))
        new: Tensor = self.conv2(self.activation2(self.norm2(x)))
        return F.dropout(new, self.dropout, self.training) if self.dropout else new


class DenseBlock(nn.Sequential):
    """Layers of which each sees what the block takes in and what all layers before it add.

    Args:
        layers: how many.
        channels: of the input.
        variant, activation, dropout: see :class:`DenseLayer`.
    """

    def __init__(
        self, layers: int, channels: int, variant: Variant, activation: Activation, dropout: float
    ) -> None:
        super().__init__()
        for number in range(layers):
            layer = DenseLayer(channels + number * variant.growth, variant, activation, dropout)
            self.add_module(f"denselayer{number + 1}", layer)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, channels + layers * growth, H, W), the input first."""
        for layer in self:
            x = torch.cat((x, layer(x)), 1)
        return x


class Transition(nn.Sequential):
    """Norm, activation, 1×1 convolution and 2×2 average pooling: fewer channels, half the resolution."""

    def __init__(self, channels_in: int, channels: int, activation: Activation) -> None:
        super().__init__()
        self.add_module("norm", nn.BatchNorm2d(channels_in))
        self.add_module("activation", activate(activation))
        self.add_module("conv", _convolution(channels_in, channels, 1))
        self.add_module("pool", nn.AvgPool2d(2))


class DenseNet(nn.Module):
    """A DenseNet classifier for one device.

    Convolutions have no bias and start as He et al. (2015), "Delving Deep into Rectifiers", say.

    Args:
        variant: which.
        classes: how many.
        activation: after every norm; each PReLU learns one slope of its own.
        dropout: share dropped of the numbers that each layer adds, never of those that are handed on.
    """

    def __init__(
        self, variant: Variant, classes: int, *, activation: Activation = "relu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        channels = 2 * variant.growth
        self.features = _stem(variant.stem, channels, activation)
        for number, layers in enumerate(variant.blocks, start=1):
            block = DenseBlock(layers, channels, variant, activation, dropout)
            self.features.add_module(f"denseblock{number}", block)
            channels += layers * variant.growth
            if number < len(variant.blocks):
                kept = max(1, int(channels * variant.compression))
                self.features.add_module(f"transition{number}", Transition(channels, kept, activation))
                channels = kept
        # The published names count the norms at the network's own level: 5 is the last whatever the blocks.
        self.features.add_module("norm5", nn.BatchNorm2d(channels))
        self.features.add_module("activation5", activate(activation))
        self.classifier = nn.Linear(channels, classes)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of normalized images: (B, 3, H, W) -> (B, classes)."""
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def _stem(kind: Literal["imagenet", "small"], channels: int, activation: Activation) -> nn.Sequential:
    """What comes before the first block; the small one is only a convolution, as in the paper."""
    stem = nn.Sequential()
    if kind == "small":
        stem.add_module("conv0", _convolution(3, channels, 3))
        return stem
    stem.add_module("conv0", _convolution(3, channels, 7, stride=2))
    stem.add_module("norm0", nn.BatchNorm2d(channels))
    stem.add_module("activation0", activate(activation))
    stem.add_module("pool0", nn.MaxPool2d(3, stride=2, padding=1))
    return stem


def _conv3x3(channels_in: int, channels: int) -> nn.Module:
    return _convolution(channels_in, channels, 3)


def _convolution(
    channels_in: int,
    channels: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    after: Literal["relu", "linear"] = "relu",
) -> nn.Conv2d:
    """Without bias; the size stays, or is divided by ``stride``. It starts so that what it puts out varies as
    much as what the activation (``after``) before it took in; every activation here counts as a ReLU.
    """
    conv = nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, nonlinearity=after)
    return conv
