"""Fold batch norms into the preceding convolutions, for prediction only."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rankless.models.layers import ConvBlock


def fold_batch_norms(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace the convolution and batch norm of every :class:`ConvBlock` with one convolution, in place.

    The model computes the same function except for rounding. With many small layers it is a fifth faster.

    Args:
        model: a model in evaluation mode.
        dtype: dtype of the folded weights; with autocast's dtype, forward passes need no conversion.
    """
    for block in model.modules():
        if isinstance(block, ConvBlock) and isinstance(block.norm, nn.BatchNorm2d):
            folded = fuse_conv_bn_eval(block.conv.double(), block.norm.double())
            block.conv = folded.to(dtype).to(memory_format=torch.channels_last)
            block.norm = nn.Identity()
