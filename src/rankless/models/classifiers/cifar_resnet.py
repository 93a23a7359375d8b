"""Residual networks for CIFAR (He et al., 2016, "Deep Residual Learning for Image Recognition", 4.2).

The three stages have 16, 32 and 64 channels. Between stages, the shortcut skips every second pixel and pads
the channels with zeros (option A), so it has no parameters.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from rankless.models.layers import Activation, activate

DEPTHS = (20, 32, 44, 56)
_CHANNELS = (16, 32, 64)


class Block(nn.Module):
    """A block of two 3×3 convolutions and a shortcut without parameters."""

    def __init__(self, channels_in: int, channels: int, stride: int, activation: Activation) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.activation1, self.activation2 = activate(activation), activate(activation)
        self.stride, self.added = stride, channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        new = self.bn2(self.conv2(self.activation1(self.bn1(self.conv1(x)))))
        if self.stride > 1 or self.added:
            before = self.added // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.added - before))
        out: Tensor = self.activation2(new + x)
        return out


class CifarResNet(nn.Module):
    """A residual network with 6n + 2 layers for images about 32 pixels wide.

    ``depth`` is one of :data:`DEPTHS`. ``dropout`` is applied to the pooled features.
    """

    def __init__(
        self, depth: int, classes: int, *, activation: Activation = "relu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, _CHANNELS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(_CHANNELS[0])
        self.activation = activate(activation)
        before = _CHANNELS[0]
        for stage, channels in enumerate(_CHANNELS, 1):
            blocks = []
            for number in range((depth - 2) // 6):
                stride = 2 if stage > 1 and number == 0 else 1
                blocks.append(Block(before, channels, stride, activation))
                before = channels
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits (B, classes) of normalized images (B, 3, H, W)."""
        x = self.activation(self.bn1(self.conv1(images)))
        for stage in range(1, len(_CHANNELS) + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        logits: Tensor = self.fc(self.dropout(x.mean((2, 3))))
        return logits
