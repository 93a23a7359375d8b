"""Depthwise convolutions that stride over a map of one pixel, computed without the stride: the same result.

On x86 CPUs oneDNN reads memory that nobody wrote when it computes the weight gradient of such a convolution
in bf16 (seen with PyTorch 2.14): the gradient is now and then NaN or another number. Small inputs of
MobileNets and SSDlite have such maps. With one output position the stride has no meaning, and without it the
kernel is sound.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class _Conv2d(nn.Conv2d):
    """The same as its base, in training without the stride where there is one position only."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.training and input.shape[-2:] == (1, 1):
            return functional.conv2d(input, weight, bias, 1, self.padding, self.dilation, self.groups)
        result: Tensor = super()._conv_forward(input, weight, bias)
        return result


def avoid_strides_over_one_pixel(model: nn.Module) -> None:
    """Change the strided grouped convolutions of ``model`` in place; names, weights and results stay."""
    for module in model.modules():
        if type(module) is nn.Conv2d and module.groups > 1 and max(module.stride) > 1 and _gives_one(module):
            module.__class__ = _Conv2d


def _gives_one(conv: nn.Conv2d) -> bool:
    """Whether a map of one pixel gives one pixel with any stride: the padding is just that of the kernel."""
    if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        return False
    sides = zip(conv.padding, conv.dilation, conv.kernel_size, strict=True)
    return all(2 * padding == dilation * (kernel - 1) for padding, dilation, kernel in sides)
