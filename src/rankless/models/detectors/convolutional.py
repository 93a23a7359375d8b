"""Build a detector from a :class:`~rankless.models.darknet.network.Network`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankless.hardware import memory
from rankless.hardware.precision import without_layers
from rankless.models.darknet import network as net
from rankless.models.heads.anchor_free import loss as anchor_free
from rankless.models.heads.anchor_free.layers import AnchorFreeHeadLayers
from rankless.models.heads.yolo import loss as yolo
from rankless.models.layers import Activation, ConvBlock, Involution, activate, max_pool
from rankless.recipe import loss_kinds
from rankless.structures import DetectionBatch, LossSum

# An untrained head predicts few objects (Lin et al., 2017, RetinaNet), so the first steps are not spent on
# unlearning thousands of false positives. All classes are equally likely.
OBJECTNESS_PRIOR = 0.01

Criterion = Callable[[Any, Any, DetectionBatch], LossSum]
"""A loss function that takes the raw outputs, the heads and the batch."""


def criterion_of(network: net.Network, options: loss_kinds.LossKeys) -> Criterion:
    """Return the loss function of a network, given the recipe's loss options."""
    if isinstance(options, loss_kinds.AutoLoss):
        options = loss_kinds.Loss(name=network.loss)
    if network.loss == "anchor-free":
        return anchor_free.AnchorFreeLoss(cast(loss_kinds.AnchorFreeLoss, options))  # validated by the recipe
    return yolo.from_recipe(cast(yolo.Options, options), network.loss)


class Route(nn.Module):
    """A layer that concatenates feature maps, or one channel group of each map."""

    def __init__(self, groups: int, group: int) -> None:
        super().__init__()
        self.groups, self.group = groups, group

    def forward(self, *maps: Tensor) -> Tensor:
        """Concatenate maps (B, Cᵢ, H, W) to (B, ΣCᵢ / groups, H, W)."""
        parts = [x.chunk(self.groups, 1)[self.group] for x in maps] if self.groups > 1 else list(maps)
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


class Shortcut(nn.Module):
    """A layer that adds feature maps. If their numbers of channels differ, only common channels are added."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.activation = activate(activation)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            shared = min(x.shape[1], other.shape[1])
            if shared < x.shape[1]:
                x = torch.cat((x[:, :shared] + other, x[:, shared:]), 1)
            else:
                x = x + other[:, :shared]
        out: Tensor = self.activation(x)
        return out


class Multiply(nn.Module):
    """A layer that multiplies two feature maps, the second of which may have a single pixel."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.activation = activate(activation)

    def forward(self, x: Tensor, factor: Tensor) -> Tensor:
        out: Tensor = self.activation(x * factor)
        return out


class Upsample(nn.Module):
    """A layer that repeats every pixel and multiplies the values by a constant."""

    def __init__(self, factor: int, scale: float) -> None:
        super().__init__()
        self.factor, self.scale = factor, scale

    def forward(self, x: Tensor) -> Tensor:
        # Deterministic even on CUDA, where the bilinear kernels use atomic additions.
        x = F.interpolate(x, scale_factor=float(self.factor), mode="nearest")
        return x if self.scale == 1 else x * self.scale


class LayerGraph(nn.Module):
    """The layers of a Darknet network."""

    def __init__(self, network: net.Network) -> None:
        super().__init__()
        self.network = network
        self.sources = [network.inputs(number) for number in range(len(network.layers))]
        self.last_use = {source: number for number, read in enumerate(self.sources) for source in read}
        self.layers = nn.ModuleDict()
        channels, predictors = network.channels_in(), network.predictors()
        for number, layer in enumerate(network.layers):
            if number in predictors and isinstance(layer, net.Conv):
                # Darknet's logistic before new_coords is part of the decoding, which expects logits here.
                layer = replace(layer, activation="linear")
            built = build_layer(layer, channels[number], network.classes)
            if number in predictors and isinstance(built, ConvBlock):
                _set_priors(built.conv, network.classes)
            self.layers[network.names[number]] = built

    def run(self, images: Tensor) -> list[Tensor]:
        """Compute the raw output of each head or, if there are no heads, the last feature map."""
        maps, made = {net.IMAGE: images}, images
        outputs = []
        for number, (layer, built) in enumerate(zip(self.network.layers, self.layers.values(), strict=True)):
            read = [maps[source] for source in self.sources[number]]
            if isinstance(layer, (net.Yolo, net.AnchorFree)):  # torch.compile in PyTorch 2.9 knows no unions
                outputs.append(read[0] if isinstance(layer, net.Yolo) else built(read[0]))
                made = read[0]
            else:
                made = built(*read)
            # Free the maps that no later layer reads.
            for source in set(self.sources[number]):  # a route may name a layer twice
                if self.last_use[source] == number:
                    del maps[source]
            if number in self.last_use:
                maps[number] = made
        return outputs or [made]


class DetectionModel(LayerGraph):
    """A :class:`~rankless.models.detectors.protocol.Detector` that consists of Darknet layers.

    By default, ``criterion`` is the published loss function.
    """

    def __init__(self, network: net.Network, criterion: Criterion | None = None) -> None:
        if torch.get_default_device().type != "meta":
            count = network.parameters()
            memory.ensure(
                4 * count,
                f"a network of {count:,} parameters",
                "use a smaller model.width, or fewer filters or classes",
            )
        super().__init__(network)
        self.heads = network.heads()
        self.criterion = criterion or criterion_of(network, loss_kinds.Loss())
        predictors = network.predictors()
        self.head_names = tuple(
            f"layers.{name}." if number in predictors else f"layers.{name}.classes."
            for number, (name, layer) in enumerate(zip(network.names, network.layers, strict=True))
            if number in predictors or isinstance(layer, net.AnchorFree)
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        """Compute one raw output (B, channels, H / stride, W / stride) per head.

        ``images`` are floats in 0..1, (B, 3, H, W), with H and W multiples of the coarsest stride.
        """
        return self.run(images)

    def head_layout(self, name: str) -> tuple[int, int]:
        return (0, 1) if name.split(".")[-2] == "classes" else (5, 1)  # else each anchor's box and objectness

    def backbone(self) -> list[nn.Module]:
        return list(self.layers.values())[: self.network.backbone]

    def decode(self, raw: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return boxes (B, P, 4), xyxy in input pixels, and scores (B, P, C), in the order of the heads."""
        with without_layers():
            detections = [head.detections(one) for one, head in zip(raw, self.heads, strict=True)]
            boxes, scores = zip(*detections, strict=True)
            return torch.cat(boxes, 1), torch.cat(scores, 1)

    def loss(self, raw: list[Tensor], batch: DetectionBatch) -> LossSum:
        with without_layers():
            return self.criterion(raw, self.heads, batch)


def build_layer(layer: net.Layer, channels: int, classes: int) -> nn.Module:
    """Build a layer from its description, for an input with the given number of channels."""
    if isinstance(layer, net.Conv):
        return ConvBlock(
            channels,
            layer.filters,
            layer.size,
            layer.stride,
            activation=layer.activation,
            norm=layer.norm,
            groups=layer.groups,
            dilation=layer.dilation,
            padding=layer.pixels,
        )
    if isinstance(layer, net.MaxPool):
        return max_pool(layer.size, layer.stride, layer.padding)
    if isinstance(layer, net.Upsample):
        return Upsample(layer.stride, layer.scale)
    if isinstance(layer, net.Route):
        return Route(layer.groups, layer.group)
    if isinstance(layer, net.Shortcut):
        return Shortcut(layer.activation)
    if isinstance(layer, net.Multiply):
        return Multiply(layer.activation)
    if isinstance(layer, net.AveragePool):
        return nn.AdaptiveAvgPool2d(1)
    if isinstance(layer, net.Dropout):
        return nn.Dropout2d(layer.probability) if layer.whole else nn.Dropout(layer.probability)
    if isinstance(layer, net.Involution):
        return Involution(channels, layer.size)
    if isinstance(layer, net.AnchorFree):
        return AnchorFreeHeadLayers(
            channels,
            classes,
            layer.bins,
            activation=layer.activation,
            dropout=layer.dropout,
        )
    return nn.Identity()  # [yolo] only describes the previous layer


@torch.no_grad()
def _set_priors(predict: nn.Conv2d, classes: int) -> None:
    """Initialize a head with small weights, and with biases that yield the prior probabilities."""
    nn.init.normal_(predict.weight, std=0.01)
    class_prior = 1 / max(classes, 2)
    bias = torch.zeros(predict.out_channels // (5 + classes), 5 + classes)
    bias[:, 4] = math.log(OBJECTNESS_PRIOR / (1 - OBJECTNESS_PRIOR))
    bias[:, 5:] = math.log(class_prior / (1 - class_prior))
    if predict.bias is not None:
        predict.bias.copy_(bias.flatten())
