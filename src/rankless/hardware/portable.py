"""Square roots and arctangents with the same bits on every x86 CPU.

PyTorch computes ``sqrt`` and the float32 ``atan`` with Intel's MKL, whose kernels start from the processor's
own approximation of 1/√x or 1/x. These approximations differ between CPU vendors, and so may the last bit of
the result, even if MKL is limited to one instruction set. ``benchmarks/instruction_sets.py --kernels``
compares PyTorch's functions on this CPU and on emulated CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class PortableFunctions(TorchFunctionMode):
    """A context manager that replaces square roots and float32 arctangents of this thread's CPU tensors.

    In-place variants and variants with ``out`` are not replaced.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (replacement := _REPLACEMENTS.get(func)) and not kwargs:
            x = args[0]
            if isinstance(x, Tensor) and x.is_floating_point() and x.device.type == "cpu":
                return replacement(func, *args)
        return func(*args, **kwargs)


def _sqrt(func: Callable[..., Tensor], x: Tensor) -> Tensor:
    root: Tensor = _SquareRoot.apply(x)
    return root


def _pow(func: Callable[..., Tensor], x: Tensor, exponent: Any) -> Tensor:
    if isinstance(exponent, float) and exponent == 0.5:  # PyTorch then calls sqrt
        return _sqrt(func, x)
    return func(x, exponent)


class _SquareRoot(torch.autograd.Function):
    """√x, computed as 1 / (1 / √x) in float64 because ``rsqrt`` uses IEEE square roots and divisions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        root = x.double().rsqrt().reciprocal().to(x.dtype)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        root: Tensor = ctx.saved_tensors[0]
        return gradient / (2 * root)


_REPLACEMENTS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    **dict.fromkeys((torch.sqrt, Tensor.sqrt), _sqrt),
    **dict.fromkeys(
        (torch.atan, torch.arctan, Tensor.atan, Tensor.arctan), lambda func, x: func(x.double()).to(x.dtype)
    ),
    **dict.fromkeys((torch.pow, Tensor.pow, Tensor.__pow__), _pow),
}
