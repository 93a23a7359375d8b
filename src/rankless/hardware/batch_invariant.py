"""Make CPU layers compute the same result for an image regardless of the batch size.

In float32, PyTorch chooses a convolution kernel based on the batch size. A single image with at most 20,480
values uses a different kernel than two images do; with one thread, a 1×1 convolution uses a different kernel
for 16 or more images. The rule is ``ConvParams::use_mkldnn`` in PyTorch's ``Convolution.cpp``. A linear layer
multiplies a single row with a different BLAS routine than several rows. These kernels add in different
orders, so the last bits of an image's output would depend on the rest of its batch. In bf16, one kernel
handles all batch sizes.

Only convolutions and linear layers are covered, and only where a module calls them itself, not inside a
composite function such as ``functional.multi_head_attention_forward``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_SMALL = 20_480
_MANY = 16
_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)


@contextmanager
def batch_invariant(device: torch.device) -> Iterator[None]:
    """Make float32 layers on a CPU compute each image's output as in a batch of 2 to 15 images.

    This is for inference. Training does not need it, because its micro-batches have a fixed size.
    """
    if device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        yield
        return
    with _SameKernel():
        yield


class _SameKernel(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_linear = func is functional.linear
        if not (is_linear or func in _CONVOLUTIONS) or len(args) < 2:
            return func(*args, **kwargs)
        images, *others = args
        if not is_linear and images.ndim != others[0].ndim:  # an image without a batch dimension
            return func(*args, **kwargs)
        is_one = images.ndim > 1 and images.shape[:-1].numel() == 1 if is_linear else len(images) == 1
        if is_one and (is_linear or images.numel() <= _SMALL):
            return func(torch.cat([images, images]), *others, **kwargs)[:1]
        if not is_linear and len(images) >= _MANY and all(side == 1 for side in others[0].shape[2:]):
            parts = images.tensor_split(-(-len(images) // (_MANY - 1)))
            return torch.cat([func(part, *others, **kwargs) for part in parts])
        return func(*args, **kwargs)
