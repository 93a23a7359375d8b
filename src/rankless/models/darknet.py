"""Darknet backbones, described as data: a tuple of stages.

A stage first changes the resolution, then works at it. Channel counts here are those of the published cfg
files; a width factor scales them when the network is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rankless.models.layers import Activation, ConvBlock, SamePool

Down = Literal["keep", "conv", "pool", "same_pool"]
Block = Literal["none", "conv", "split"]


@dataclass(frozen=True)
class Stage:
    """A stretch of the backbone at one resolution.

    Attributes:
        channels: of the stage's convolutions at width 1.
        down: how it begins: not at all, a 3×3 convolution with stride 2 to ``channels``, 2×2 max pooling, or
            2×2 max pooling with stride 1, which keeps the size.
        block: what follows: nothing, a 3×3 convolution to ``channels``, or YOLOv4-tiny's cross-stage partial
            block, which puts out twice ``channels``.
    """

    channels: int
    down: Down = "pool"
    block: Block = "conv"

    @property
    def stride(self) -> int:
        """By how much the stage divides the resolution."""
        return 2 if self.down in ("conv", "pool") else 1


YOLOV3_TINY_STAGES = (
    Stage(16, down="keep"),
    Stage(32),
    Stage(64),
    Stage(128),
    Stage(256),
    Stage(512),
    Stage(1024, down="same_pool"),
)

YOLOV4_TINY_STAGES = (
    Stage(32, down="conv", block="none"),
    Stage(64, down="conv", block="split"),
    Stage(128, block="split"),
    Stage(256, block="split"),
    Stage(512),
)


def scaled(channels: int, width: float) -> int:
    """``channels * width`` rounded to the nearest multiple of 8, at least 8."""
    return max(8, 8 * int(channels * width / 8 + 0.5))


class SplitBlock(nn.Module):
    """YOLOv4-tiny's cross-stage partial block; the second half of the channels goes through (cfg: groups=2).

    Args:
        channels_in, channels: ``channels`` is even; the output has twice as many.
    """

    def __init__(self, channels_in: int, channels: int, activation: Activation, momentum: float) -> None:
        super().__init__()
        half = channels // 2
        self.enter = ConvBlock(channels_in, channels, activation=activation, momentum=momentum)
        self.first = ConvBlock(half, half, activation=activation, momentum=momentum)
        self.second = ConvBlock(half, half, activation=activation, momentum=momentum)
        self.merge = ConvBlock(channels, channels, 1, activation=activation, momentum=momentum)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, channels_in, H, W) -> output (B, 2 * channels, H, W) and tap (B, channels, H, W)."""
        x = self.enter(x)
        first = self.first(x.chunk(2, 1)[1])
        tap = self.merge(torch.cat((self.second(first), first), 1))
        return torch.cat((x, tap), 1), tap


class StageLayers(nn.Module):
    """A built :class:`Stage`.

    Attributes:
        channels: of its output.
        tap_channels: of the map it offers to the necks; in a split block that is the merged half.
    """

    def __init__(
        self, stage: Stage, channels_in: int, width: float, activation: Activation, momentum: float
    ) -> None:
        super().__init__()
        channels = scaled(stage.channels, width)
        down: dict[Down, nn.Module] = {
            "keep": nn.Identity(),
            "pool": nn.MaxPool2d(2, 2),
            "same_pool": SamePool(),
        }
        if stage.down == "conv":
            self.down: nn.Module = ConvBlock(
                channels_in, channels, 3, 2, activation=activation, momentum=momentum
            )
            channels_in = channels
        else:
            self.down = down[stage.down]
        self.block: nn.Module
        self.channels = self.tap_channels = channels
        if stage.block == "split":
            self.block = SplitBlock(channels_in, channels, activation, momentum)
            self.channels = 2 * channels
        elif stage.block == "conv":
            self.block = ConvBlock(channels_in, channels, activation=activation, momentum=momentum)
        else:
            self.block = nn.Identity()
            self.channels = self.tap_channels = channels_in

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) -> output and tap, (B, channels, h, w) and (B, tap_channels, h, w)."""
        out = self.block(self.down(x))
        return out if isinstance(out, tuple) else (out, out)
