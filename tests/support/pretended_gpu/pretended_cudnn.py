"""Replacements for cuDNN's operators, which allocate their results and count as launches.

PyTorch imports this module itself; see ``ENTRY_POINT`` in the package.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from typing import Any

import torch
from torch import Tensor

_RUNTIME = ctypes.CDLL(os.environ["LD_PRELOAD"])
_IMPLEMENTED: list[torch.library.Library] = []


def replace_cudnn() -> None:
    """Replace cuDNN's operators in this process."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that operators are overridden
        library.impl("cudnn_convolution", _convolution, "CUDA")
        library.impl("cudnn_convolution_transpose", _transposed, "CUDA")
        library.impl("convolution_backward", _convolution_backward, "CUDA")
        library.impl("cudnn_batch_norm", _batch_norm, "CUDA")
        library.impl("cudnn_batch_norm_backward", _batch_norm_backward, "CUDA")
    _IMPLEMENTED.append(library)


def _convolution(
    x: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, *_: bool
) -> Tensor:
    return _result(x, weight, stride, padding, dilation, False, [0] * len(stride), groups)


def _transposed(
    x: Tensor,
    weight: Tensor,
    padding: Any,
    output_padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    *_: bool,
) -> Tensor:
    return _result(x, weight, stride, padding, dilation, True, output_padding, groups)


def _result(x: Tensor, weight: Tensor, *options: Any) -> Tensor:
    """Return memory for the result of a convolution, whose shape PyTorch computes."""
    _RUNTIME.pretended_launch(1)
    like = torch.ops.aten.convolution(x.to("meta"), weight.to("meta"), None, *options)
    layout = torch.channels_last if _is_channels_last(x, weight) else torch.contiguous_format
    return torch.empty(like.shape, dtype=x.dtype, device=x.device, memory_format=layout)


def _is_channels_last(x: Tensor, weight: Tensor) -> bool:
    return x.ndim == 4 and any(one.is_contiguous(memory_format=torch.channels_last) for one in (x, weight))


def _convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, *_: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    for_input, for_weight, for_bias = _[-1]
    _RUNTIME.pretended_launch(for_input + for_weight)
    return (
        torch.empty_like(x) if for_input else None,
        torch.empty_like(weight) if for_weight else None,
        gradient.sum([0, *range(2, gradient.ndim)]) if for_bias else None,
    )


def _batch_norm(x: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _RUNTIME.pretended_launch(1)
    is_training = options[4]
    saved = x.new_empty(x.shape[1] if is_training else 0, dtype=torch.float32)
    return torch.empty_like(x), saved, saved.clone(), x.new_empty(0, dtype=torch.uint8)


def _batch_norm_backward(x: Tensor, gradient: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, ...]:
    _RUNTIME.pretended_launch(2)
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
