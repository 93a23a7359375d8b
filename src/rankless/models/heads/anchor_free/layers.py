"""The layers of an anchor-free head with branches for boxes and classes (YOLOX, Ge et al., 2021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rankless.models.layers import Activation, ConvBlock

# An untrained head predicts few objects (Lin et al., 2017, RetinaNet), so the first steps are not spent on
# unlearning thousands of false positives.
CLASS_PRIOR = 0.01
# Width and height of the boxes of an untrained head in cells, in the middle of the range of sizes.
SIZE_PRIOR = 3.0
# With this width, the heads add 4 % to the multiplications of the two-level YOLOv4-tiny at 320 pixels (14 %
# with three levels). 96 channels would add 9 % (31 %), and 128 channels 16 % (54 %).
LARGEST_HIDDEN = 64


class AnchorFreeHeadLayers(nn.Module):
    """A decoupled head at one level: a 1×1 convolution, then two branches of 3×3 and 1×1 convolutions.

    Args:
        channels_in: channels of the input.
        classes: number of classes, at least 1.
        bins: see :class:`~rankless.models.heads.anchor_free.codec.AnchorFreeHead`.
        hidden: channels of the branches; None means the smaller of ``channels_in`` and ``LARGEST_HIDDEN``.
        depth: number of 3×3 convolutions per branch.
        activation: activation after all convolutions except the last.
        dropout: fraction of the channels to drop before the last convolutions.
    """

    def __init__(
        self,
        channels_in: int,
        classes: int,
        bins: int = 0,
        hidden: int | None = None,
        depth: int = 2,
        *,
        activation: Activation = "swish",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        channels = min(channels_in, LARGEST_HIDDEN) if hidden is None else hidden

        def branch() -> nn.Sequential:
            blocks = (ConvBlock(channels, channels, activation=activation) for _ in range(depth))
            return nn.Sequential(*blocks, nn.Dropout2d(dropout) if dropout else nn.Identity())

        self.stem = ConvBlock(channels_in, channels, 1, activation=activation)
        self.box_branch, self.class_branch = branch(), branch()
        self.box = nn.Conv2d(channels, 4 * max(bins, 1), 1)
        self.classes = nn.Conv2d(channels, classes, 1)
        _set_priors(self.box, self.classes, bins)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, channels_in, H, W) to the raw output (B, 4 * max(bins, 1) + C, H, W)."""
        x = self.stem(x)
        return torch.cat((self.box(self.box_branch(x)), self.classes(self.class_branch(x))), 1)


@torch.no_grad()
def _set_priors(box: nn.Conv2d, classes: nn.Conv2d, bins: int) -> None:
    """Initialize a head with small weights, and with biases that yield the prior scores and sizes."""
    if bins:
        # A geometric distribution whose mean is half the size. A uniform one would give huge boxes.
        fall = math.log(SIZE_PRIOR / (2 + SIZE_PRIOR))
        prior = (torch.arange(bins) * fall).repeat(4)
    else:
        prior = torch.tensor([0.0, 0.0, math.log(SIZE_PRIOR), math.log(SIZE_PRIOR)])
    scores = torch.full((classes.out_channels,), math.log(CLASS_PRIOR / (1 - CLASS_PRIOR)))
    for last, bias in ((box, prior), (classes, scores)):
        nn.init.normal_(last.weight, std=0.01)
        if last.bias is not None:
            last.bias.copy_(bias)
