"""Fold batch norms and activations into the preceding convolutions, to predict faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rankless.models.heads.anchor_free.layers import AnchorFreeHeadLayers
from rankless.models.layers import ConvBlock, Involution

# Names and parameters of the activations in oneDNN.
_ACTIVATIONS: dict[type[nn.Module], Callable[[Any], tuple[str, list[float]]]] = {
    nn.Identity: lambda _: ("none", []),
    nn.ReLU: lambda _: ("relu", []),
    nn.LeakyReLU: lambda one: ("leaky_relu", [one.negative_slope]),
    nn.SiLU: lambda _: ("swish", []),
}


def fold_batch_norms(model: nn.Module, dtype: torch.dtype) -> bool:
    """Replace the convolution and the batch norm in each :class:`ConvBlock` with one convolution, in place.

    The model, which must be in evaluation mode, computes the same function except for rounding. On a CPU with
    oneDNN, the convolution also applies the activation. Models with many small layers become about a third
    faster. ``dtype`` should be autocast's dtype, so that no conversions are needed.

    Returns:
        Whether oneDNN computes all layers with weights in ``dtype``. If so, the result does not depend on the
        batch size, and neither autocast nor batch-invariant kernels are needed.
    """
    fused = 0
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, ConvBlock):
                _fold(layer, dtype)
                conv, activation = layer.conv, layer.activation
            elif isinstance(layer, nn.Conv2d) and isinstance(parent, AnchorFreeHeadLayers | Involution):
                conv, activation = layer, nn.Identity()
            else:
                continue
            if _is_fusible(conv, activation, dtype):
                setattr(parent, name, _Fused(conv.to(dtype), activation))
                fused += 1
    return fused > 0 and next(model.parameters(), None) is None


def _fold(block: ConvBlock, dtype: torch.dtype) -> None:
    if isinstance(block.norm, nn.BatchNorm2d):
        folded = fuse_conv_bn_eval(block.conv.double(), block.norm.double())
        block.conv = folded.to(dtype).to(memory_format=torch.channels_last)
        block.norm = nn.Identity()


def _is_fusible(conv: nn.Conv2d, activation: nn.Module, dtype: torch.dtype) -> bool:
    """Check whether oneDNN computes a convolution correctly in a dtype (see ``hardware.convolutions``)."""
    if conv.weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    multiplies = conv.groups > 1 and conv.weight.shape[1] == 1 and conv.out_channels > conv.groups
    if type(activation) not in _ACTIVATIONS or (multiplies and conv.stride[-1] > 1):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class _Fused(nn.Module):
    """A convolution and an activation that oneDNN computes in one call, for inputs of any size."""

    def __init__(self, conv: nn.Conv2d, activation: nn.Module) -> None:
        super().__init__()
        self._weight, self._dtype, self._is_packed = conv.weight.detach(), conv.weight.dtype, False
        self._sides = conv.padding, conv.stride, conv.dilation, conv.groups
        bias = None if conv.bias is None else conv.bias.detach()
        self._others = bias, *self._sides, *_ACTIVATIONS[type(activation)](activation), ""

    def forward(self, x: Tensor) -> Tensor:
        if not self._is_packed:  # to oneDNN's layout for this input size; for other sizes, oneDNN converts it
            self._weight = torch.ops.mkldnn._reorder_convolution_weight(self._weight, *self._sides, x.shape)
            self._is_packed = True
        if x.dtype != self._dtype:
            x = x.to(self._dtype)
        out: Tensor = torch.ops.mkldnn._convolution_pointwise.default(x, self._weight, *self._others)
        return out
