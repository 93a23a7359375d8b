"""Make CPU layers compute the same result for an image regardless of the batch size.

In float32, PyTorch chooses a convolution kernel based on the batch size. A single image with at most 20,480
values uses a different kernel than two images do; with one thread, a 1×1 convolution uses a different kernel
for 16 or more images. The rule is ``ConvParams::use_mkldnn`` in PyTorch's ``Convolution.cpp``. These kernels
add in different orders, so the last bits of an image's output would depend on the rest of its batch. In bf16,
one kernel handles all batch sizes.

A linear layer is a matrix product in MKL. Its kernel depends on the number of rows, the instruction set and
the number of threads, and the last rows of a product that is not a multiple of the kernel's tile may use
another one. So each product has exactly 48 rows, a multiple of all tiles found; missing rows are copies.
PyTorch also adds the bias after the product if the input is not contiguous. A slice of the tokens of one
image is contiguous, but that of two images is not.

Two rare kinds of convolutions may still depend on the batch: with groups of 2 or more channels that oneDNN's
vectors do not fit, and, with several threads and AVX2, padded 1×1 convolutions.

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
_ROWS = 48
_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)


@contextmanager
def batch_invariant(device: torch.device) -> Iterator[None]:
    """Make float32 layers on a CPU compute each image's output with kernels that do not depend on the batch.

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
        if len(args) < 2:
            return func(*args, **kwargs)
        images, *others = args
        if func is functional.linear and images.ndim > 1 and images.numel():
            return _linear(images, *others, **kwargs)
        if func not in _CONVOLUTIONS or images.ndim != others[0].ndim:  # an image without a batch dimension
            return func(*args, **kwargs)
        if len(images) == 1 and images.numel() <= _SMALL:
            return func(torch.cat([images, images]), *others, **kwargs)[:1]
        if len(images) >= _MANY and all(side == 1 for side in others[0].shape[2:]):
            parts = images.tensor_split(-(-len(images) // (_MANY - 1)))
            return torch.cat([func(part, *others, **kwargs) for part in parts])
        return func(*args, **kwargs)


def _linear(images: torch.Tensor, *others: Any, **kwargs: Any) -> torch.Tensor:
    rows = images.reshape(-1, images.shape[-1])
    missing = -len(rows) % _ROWS
    filled = torch.cat([rows, rows[-1:].expand(missing, -1)])
    parts = [functional.linear(part, *others, **kwargs) for part in filled.split(_ROWS)]
    return torch.cat(parts)[: len(rows)].reshape(*images.shape[:-1], -1)
