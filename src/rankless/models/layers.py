"""The small parts that the convolutional networks here are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Literal["leaky", "mish", "swish", "relu", "linear"]

LEAKY_SLOPE = 0.1
BATCH_NORM_EPS = 1e-5
# Darknet's is 0.01 (share of the new statistics), meant for half a million steps. A run of a few thousand
# would be evaluated with statistics of weights long gone.
BATCH_NORM_MOMENTUM = 0.03

# In place where the gradient can be had from the result: the normalised map is then not kept twice.
_ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "leaky": lambda: nn.LeakyReLU(LEAKY_SLOPE, inplace=True),
    "relu": lambda: nn.ReLU(inplace=True),
    "mish": nn.Mish,
    "swish": nn.SiLU,
    "linear": nn.Identity,
}


class ConvBlock(nn.Module):
    """Convolution without bias, batch norm, activation; the size stays, or is divided by ``stride``.

    Args:
        channels_in, channels: of the input and of the output.
        kernel: odd side of the kernel in pixels.
        stride: of the convolution.
        activation: which.
        momentum: of the batch norm's running statistics, in PyTorch's sense.
    """

    def __init__(
        self,
        channels_in: int,
        channels: int,
        kernel: int = 3,
        stride: int = 1,
        *,
        activation: Activation = "leaky",
        momentum: float = BATCH_NORM_MOMENTUM,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(channels, eps=BATCH_NORM_EPS, momentum=momentum)
        self.activation = _ACTIVATIONS[activation]()
        # fan_out: keeps the variance of the gradients; batch norm looks after that of the activations.
        nn.init.kaiming_normal_(self.conv.weight, a=LEAKY_SLOPE, mode="fan_out", nonlinearity="leaky_relu")

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, H, W) -> (B, channels, H / stride, W / stride)."""
        out: Tensor = self.activation(self.norm(self.conv(x)))
        return out


class SamePool(nn.Module):
    """Max pooling 2×2 with stride 1 that keeps the size: the missing row and column are right and below.

    Darknet's ``[maxpool] size=2 stride=1``.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        return F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-torch.inf), 2, 1)


def upsample(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, C, 2H, 2W), every pixel four times.

    ``nearest`` gives equal bits on CUDA too: each input's gradient is gathered by one thread, in a fixed
    order, where the bilinear kernels add with atomics. It keeps channels_last.
    """
    return F.interpolate(x, scale_factor=2.0, mode="nearest")
