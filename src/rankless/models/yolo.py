"""YOLO detectors: a Darknet backbone, a neck from coarse to fine, and a head at each level.

A variant is a value of :class:`Variant`; the channel counts are those of the published cfg files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rankless.models.darknet import YOLOV3_TINY_STAGES, YOLOV4_TINY_STAGES, Stage, StageLayers, scaled
from rankless.models.layers import BATCH_NORM_MOMENTUM, Activation, ConvBlock, upsample
from rankless.yolo_grid import YoloHead

# What an untrained head says: hardly a cell holds an object (Lin et al., 2017, RetinaNet), so that the first
# steps are not spent on unlearning thousands of false objects; each class is as likely as any other.
OBJECTNESS_PRIOR = 0.01


@dataclass(frozen=True)
class Level:
    """One head and what leads to it.

    Attributes:
        stage: the backbone stage whose tap it takes.
        reduce: channels of the 1×1 convolution; at the first level it reads the tap itself, at later ones the
            level before, and is then upsampled and put before the tap.
        expand: channels of the 3×3 convolution before the prediction.
        mask: the anchors this head owns.
        passes: what the next level reads: what the 3×3 convolution takes in, or what it puts out.
    """

    stage: int
    reduce: int
    expand: int
    mask: tuple[int, ...]
    passes: Literal["input", "output"] = "input"


@dataclass(frozen=True)
class Variant:
    """A published network.

    Attributes:
        stages: the backbone.
        levels: the heads, from the coarsest to the finest.
        anchors: (width, height) in pixels.
        loss_name: the loss it was published with.
        side: of the square input it was published with, in pixels.
        scale_xy, anchor_iou: see :class:`~rankless.yolo_grid.YoloHead`.
        activation: of every convolution but the heads' last.
    """

    stages: tuple[Stage, ...]
    levels: tuple[Level, ...]
    anchors: tuple[tuple[float, float], ...]
    loss_name: Literal["yolov3", "yolov4"]
    side: int = 416
    scale_xy: float = 1.0
    anchor_iou: float = 1.0
    activation: Activation = "leaky"

    def heads(self) -> tuple[YoloHead, ...]:
        """The heads' descriptions, in the order of the model's outputs."""
        return tuple(
            YoloHead(
                anchors=self.anchors,
                mask=level.mask,
                stride=math.prod(stage.stride for stage in self.stages[: level.stage + 1]),
                scale_xy=self.scale_xy,
                anchor_iou=self.anchor_iou,
            )
            for level in self.levels
        )


_YOLOV4_ANCHORS = (
    (12, 16),
    (19, 36),
    (40, 28),
    (36, 75),
    (76, 55),
    (72, 146),
    (142, 110),
    (192, 243),
    (459, 401),
)
_TINY_ANCHORS = ((10, 14), (23, 27), (37, 58), (81, 82), (135, 169), (344, 319))

# Darknet's cfg/yolov3-tiny.cfg
YOLOV3_TINY = Variant(
    stages=YOLOV3_TINY_STAGES,
    levels=(
        Level(stage=6, reduce=256, expand=512, mask=(3, 4, 5)),
        Level(stage=4, reduce=128, expand=256, mask=(0, 1, 2)),
    ),
    anchors=_TINY_ANCHORS,
    loss_name="yolov3",
)

# AlexeyAB's cfg/yolov4-tiny.cfg. Anchor 3 belongs to both heads and anchor 0 to none: so it is published.
YOLOV4_TINY = Variant(
    stages=YOLOV4_TINY_STAGES,
    levels=(
        Level(stage=4, reduce=256, expand=512, mask=(3, 4, 5)),
        Level(stage=3, reduce=128, expand=256, mask=(1, 2, 3)),
    ),
    anchors=_TINY_ANCHORS,
    loss_name="yolov4",
    scale_xy=1.05,
)

# AlexeyAB's cfg/yolov4-tiny-3l.cfg: a third head at stride 8, with YOLOv4's anchors.
YOLOV4_TINY_3L = Variant(
    stages=YOLOV4_TINY_STAGES,
    levels=(
        Level(stage=4, reduce=256, expand=512, mask=(6, 7, 8)),
        Level(stage=3, reduce=128, expand=256, mask=(3, 4, 5), passes="output"),
        Level(stage=2, reduce=64, expand=128, mask=(0, 1, 2)),
    ),
    anchors=_YOLOV4_ANCHORS,
    loss_name="yolov4",
    side=608,
    scale_xy=1.05,
)


class LevelLayers(nn.Module):
    """A built :class:`Level`.

    Args:
        level: what to build.
        below: channels of the level before; None at the first level.
        tap: channels of the backbone's map.
        outputs: channels of the prediction.
        dropout: share of channels dropped before the last convolution.
    """

    def __init__(
        self,
        level: Level,
        below: int | None,
        tap: int,
        outputs: int,
        *,
        width: float,
        dropout: float,
        activation: Activation,
        momentum: float,
    ) -> None:
        super().__init__()
        reduce, expand = scaled(level.reduce, width), scaled(level.expand, width)
        self.reduce = ConvBlock(below or tap, reduce, 1, activation=activation, momentum=momentum)
        merged = reduce + tap if below else reduce
        self.passes_output = level.passes == "output"
        self.channels = expand if self.passes_output else merged
        self.expand = ConvBlock(merged, expand, activation=activation, momentum=momentum)
        self.dropout = nn.Dropout2d(dropout) if dropout else nn.Identity()
        self.predict = nn.Conv2d(expand, outputs, 1)

    def forward(self, below: Tensor | None, tap: Tensor) -> tuple[Tensor, Tensor]:
        """What the next level reads (B, channels, H, W), and the raw head (B, outputs, H, W)."""
        if below is None:
            x = self.reduce(tap)
        else:
            x = torch.cat((upsample(self.reduce(below)), tap), 1)
        expanded = self.expand(x)
        return expanded if self.passes_output else x, self.predict(self.dropout(expanded))


class DetectionModel(nn.Module):
    """A YOLO network for one device.

    Args:
        variant: which.
        classes: how many, at least 1.
        width: factor on every channel count but the heads' last.
        dropout: share of channels dropped before each head's last convolution.
        momentum: of the batch norms' running statistics, in PyTorch's sense.

    Attributes:
        heads: what the outputs mean, in their order.
        loss_name: the loss it was published with.
    """

    def __init__(
        self,
        variant: Variant,
        classes: int,
        *,
        width: float = 1.0,
        dropout: float = 0.0,
        momentum: float = BATCH_NORM_MOMENTUM,
    ) -> None:
        super().__init__()
        self.heads = variant.heads()
        self.loss_name = variant.loss_name
        self.tapped = tuple(level.stage for level in variant.levels)
        self.stages = nn.ModuleList()
        channels, taps = 3, []
        for stage in variant.stages:
            built = StageLayers(stage, channels, width, variant.activation, momentum)
            self.stages.append(built)
            channels = built.channels
            taps.append(built.tap_channels)
        self.levels = nn.ModuleList()
        below: int | None = None
        for level in variant.levels:
            layers = LevelLayers(
                level,
                below,
                taps[level.stage],
                len(level.mask) * (5 + classes),
                width=width,
                dropout=dropout,
                activation=variant.activation,
                momentum=momentum,
            )
            _set_priors(layers.predict, len(level.mask), classes)
            self.levels.append(layers)
            below = layers.channels

    def forward(self, images: Tensor) -> list[Tensor]:
        """Raw heads of normalised images.

        Args:
            images: float in 0..1, (B, 3, H, W) with H and W multiples of 32; channels_last is faster.

        Returns:
            One (B, A * (5 + C), H / stride, W / stride) per head.
        """
        taps = []
        x = images
        for stage in self.stages:
            x, tap = stage(x)
            taps.append(tap)
        below: Tensor | None = None
        outputs = []
        for number, level in zip(self.tapped, self.levels, strict=True):
            below, raw = level(below, taps[number])
            outputs.append(raw)
        return outputs


@torch.no_grad()
def _set_priors(predict: nn.Conv2d, anchors: int, classes: int) -> None:
    """Small weights, and a bias that says what is likely before anything is known."""
    nn.init.normal_(predict.weight, std=0.01)
    class_prior = 1 / max(classes, 2)
    bias = torch.zeros(anchors, 5 + classes)
    bias[:, 4] = math.log(OBJECTNESS_PRIOR / (1 - OBJECTNESS_PRIOR))
    bias[:, 5:] = math.log(class_prior / (1 - class_prior))
    if predict.bias is not None:
        predict.bias.copy_(bias.flatten())
