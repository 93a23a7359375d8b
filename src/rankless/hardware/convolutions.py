"""Convolutions that oneDNN would compute from memory that nobody wrote, computed in float32 instead.

On x86 CPUs with bf16 (seen with PyTorch 2.14), two kinds are unsound: the gradient of the weight where the
stride is larger than the map is wide, as in the last levels of detectors on small images, and the output
where groups of one channel make several and the width is strided. Their numbers change from call to call, now
and then to NaN. In three dimensions small maps are wrong with any stride, and memory of others is written.
``benchmarks/onednn_unwritten_memory.py`` shows which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class SoundConvolutions(TorchFunctionMode):
    """Inside autocast on a CPU: this thread's unsound convolutions are computed in float32.

    Their results are rounded to the type that they would have, and so are the gradients.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the function, in float32 if it is an unsound convolution."""
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
    # The strided map is the output here.
    reach = _last(dilation) * (weight.shape[-1] - 1) + 1
    width = (input.shape[-1] - 1) * _last(stride) - 2 * _last(padding) + reach + _last(output_padding)
    return _last(stride) > width


def _last(sides: int | str | tuple[int, ...]) -> int:
    """That of the width; a padding in words goes with a stride of 1."""
    if isinstance(sides, str):
        return 0
    return int(sides) if isinstance(sides, int) else int(sides[-1])


_CHECKS: dict[Callable[..., Any], Callable[..., bool]] = {
    **dict.fromkeys((functional.conv1d, functional.conv2d), _convolves_unsoundly),
    **dict.fromkeys((functional.conv_transpose1d, functional.conv_transpose2d), _transposed_unsoundly),
    **dict.fromkeys((functional.conv3d, functional.conv_transpose3d), lambda *_, **__: True),
}
