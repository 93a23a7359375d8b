"""Float32 replacements for convolutions in which oneDNN reads uninitialized memory.

On x86 CPUs with bf16 (seen with PyTorch 2.14), two results are wrong: the weight's gradient if the stride
exceeds the map's width, as in the last levels of detectors on small images, and the output if each group has
one input channel, several output channels and a horizontal stride above 1. The wrong values change from call
to call and are sometimes NaN. In three dimensions, small maps give wrong results with any stride, and memory
outside the result is overwritten. With new memory full of NaN, the errors show as NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class SoundConvolutions(TorchFunctionMode):
    """A context manager that makes this thread run convolutions in float32 if oneDNN is wrong.

    Results and gradients are rounded to the dtype that they would have otherwise.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (is_unsound := _CHECKS.get(func)) is None or not is_unsound(*args, **kwargs):
            return func(*args, **kwargs)
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else args[0].dtype
        with torch.autocast("cpu", enabled=False):
            wide = [one.float() if isinstance(one, Tensor) else one for one in args]
            named = {key: one.float() if isinstance(one, Tensor) else one for key, one in kwargs.items()}
            return func(*wide, **named).to(dtype)


def _convolves_unsoundly(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | str | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> bool:
    across = _last(stride)
    multiplies = groups > 1 and weight.shape[1] == 1 and weight.shape[0] > groups
    return across > input.shape[-1] or (multiplies and across > 1)


def _transposed_unsoundly(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    output_padding: int | tuple[int, ...] = 0,
    groups: int = 1,
    dilation: int | tuple[int, ...] = 1,
) -> bool:
    # Here the output is the map to which the stride applies.
    reach = _last(dilation) * (weight.shape[-1] - 1) + 1
    width = (input.shape[-1] - 1) * _last(stride) - 2 * _last(padding) + reach + _last(output_padding)
    return _last(stride) > width


def _last(sides: int | str | tuple[int, ...]) -> int:
    if isinstance(sides, str):  # padding given by name, which requires a stride of 1
        return 0
    return int(sides) if isinstance(sides, int) else int(sides[-1])


_CHECKS: dict[Callable[..., Any], Callable[..., bool]] = {
    **dict.fromkeys((functional.conv1d, functional.conv2d), _convolves_unsoundly),
    **dict.fromkeys((functional.conv_transpose1d, functional.conv_transpose2d), _transposed_unsoundly),
    **dict.fromkeys((functional.conv3d, functional.conv_transpose3d), lambda *_, **__: True),
}
