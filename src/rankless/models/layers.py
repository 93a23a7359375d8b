"""Building blocks of the convolutional networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Literal[
    "leaky", "mish", "swish", "relu", "linear", "logistic", "tanh", "relu6", "elu", "selu", "gelu",
    "hard_mish", "hardtan", "loggy", "prelu", "ramp", "relie",
]  # fmt: skip

LEAKY_SLOPE = 0.1
BATCH_NORM_EPS = 1e-5
# exp(8) = 2981 times an anchor or a cell is far larger than any image, and its square does not overflow
# float32, so a diverging run yields huge boxes instead of infinities and NaN.
LARGEST_LOG_SIZE = 8.0
INVOLUTION_GROUP = 16  # number of channels that share a kernel
# Darknet's momentum of 0.01 suits half a million steps. Runs of a few thousand steps would be evaluated with
# outdated statistics.
BATCH_NORM_MOMENTUM = 0.03


def wide(values: Tensor) -> Tensor:
    """Convert values to float32, unless they are float64."""
    return values if values.dtype == torch.float64 else values.float()


def constant(values: object, like: Tensor) -> Tensor:
    """Return a tensor of numbers with the dtype and device of ``like``; the host does not wait for a GPU."""
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)


def adopt_modules(adapter: nn.Module, network: nn.Module) -> None:
    """Make the submodules of ``network`` those of ``adapter``, so that the tensors keep their names."""
    for name, part in network.named_children():
        setattr(adapter, name, part)
    adapter.__dict__["network"] = network  # not a submodule


class Elementwise(nn.Module):
    """A module for an elementwise function that has no module in PyTorch."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _hard_mish(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.where(x > -2, x * x / 2 + x, 0))


def _loggy(x: Tensor) -> Tensor:
    return 2 * x.sigmoid() - 1


def _ramp(x: Tensor) -> Tensor:
    return x.relu() + 0.1 * x


# Activations whose gradient can be computed from the result work in place, to save memory.
_ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "leaky": lambda: nn.LeakyReLU(LEAKY_SLOPE, inplace=True),
    "relu": lambda: nn.ReLU(inplace=True),
    "mish": nn.Mish,
    "swish": nn.SiLU,
    "linear": nn.Identity,
    "logistic": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu6": nn.ReLU6,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": lambda: nn.GELU(approximate="tanh"),
    "hard_mish": lambda: Elementwise(_hard_mish),
    "hardtan": nn.Hardtanh,
    "loggy": lambda: Elementwise(_loggy),
    "prelu": nn.PReLU,
    "ramp": lambda: Elementwise(_ramp),
    "relie": lambda: nn.LeakyReLU(0.01, inplace=True),
}


def activate(name: Activation) -> nn.Module:
    """Build an activation module. Each call returns a new module, because a PReLU has a parameter."""
    return _ACTIVATIONS[name]()


class ConvBlock(nn.Module):
    """A convolution followed by batch norm and an activation.

    Without batch norm, the convolution has a bias. By default, the ``padding`` in pixels on each side is half
    the kernel size times the dilation.
    """

    def __init__(
        self,
        channels_in: int,
        channels: int,
        kernel: int = 3,
        stride: int = 1,
        *,
        activation: Activation = "leaky",
        norm: bool = True,
        groups: int = 1,
        dilation: int = 1,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        padding = kernel // 2 * dilation if padding is None else padding
        self.conv = nn.Conv2d(channels_in, channels, kernel, stride, padding, dilation, groups, bias=not norm)
        self.norm = nn.BatchNorm2d(channels, BATCH_NORM_EPS, BATCH_NORM_MOMENTUM) if norm else nn.Identity()
        self.activation = activate(activation)
        # fan_out preserves the variance of the gradients, and batch norm that of the activations.
        nn.init.kaiming_normal_(self.conv.weight, a=LEAKY_SLOPE, mode="fan_out", nonlinearity="leaky_relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, channels_in, H, W) to (B, channels, H / stride, W / stride)."""
        out: Tensor = self.activation(self.norm(self.conv(x)))
        return out


def channels_last(model: nn.Module) -> nn.Module:
    """Convert a model's tensors of 4 dimensions to channels_last, and return the model.

    ``Module.to(memory_format=…)`` would fail for tensors of 5 dimensions.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return model


class PaddedPool(nn.Module):
    """Max pooling with asymmetric padding, as in Darknet's ``[maxpool]``.

    ``padding`` is the total in pixels, with the smaller half on the left and top. A padding of 1 adds a row
    at the bottom and a column on the right.
    """

    def __init__(self, size: int, stride: int, padding: int) -> None:
        super().__init__()
        self.size, self.stride = size, stride
        before = padding // 2
        self.padding = (before, padding - before) * 2

    def forward(self, x: Tensor) -> Tensor:
        """Pool (B, C, H, W) to (B, C, (H + padding - size) // stride + 1, …)."""
        return F.max_pool2d(F.pad(x, self.padding, value=-torch.inf), self.size, self.stride)


def max_pool(size: int, stride: int, padding: int) -> nn.Module:
    """Build the fastest module that computes Darknet's ``[maxpool]`` for inputs with even sides."""
    if size == stride == 2 and padding <= 1:
        return nn.MaxPool2d(2, 2)  # the padding matters only for odd sides
    if padding == size - 1 and padding % 2 == 0:
        return nn.MaxPool2d(size, stride, padding // 2)
    return PaddedPool(size, stride, padding)


class Involution(nn.Module):
    """An involution (Li et al., 2021, "Involution: Inverting the Inherence of Convolution").

    Each output pixel is a weighted sum of its neighborhood of ``size`` × ``size`` pixels (``size`` is odd).
    The weights, which are shared by groups of 16 channels, are computed from the pixel by a 1×1 convolution
    to C/4 channels, batch norm, ReLU and another 1×1 convolution.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.groups = channels // math.gcd(channels, INVOLUTION_GROUP)
        squeezed = max(1, channels // 4)
        self.reduce = ConvBlock(channels, squeezed, 1, activation="relu")
        self.span = nn.Conv2d(squeezed, size * size * self.groups, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        kernels = self.span(self.reduce(x)).view(batch, self.groups, 1, self.size**2, height, width)
        around = F.unfold(x, self.size, padding=self.size // 2).to(kernels.dtype)  # (B, C * size², H * W)
        around = around.view(batch, self.groups, channels // self.groups, self.size**2, height, width)
        mixed: Tensor = (kernels * around).sum(3).view(batch, channels, height, width)
        return mixed.contiguous(memory_format=torch.channels_last)
