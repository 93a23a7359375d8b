"""Batch norm of several micro-batches as one batch, as a function of autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Total = Callable[[Iterable[Tensor]], Tensor]
"""Adds one vector (N,) per micro-batch to those of all ranks."""


class GlobalNorm(torch.autograd.Function):
    """One micro-batch's part of a batch norm over all of them (Ioffe & Szegedy 2015).

    Every micro-batch has its own graph; forwards and backwards it waits in the norm for the others.
    """

    @staticmethod
    def forward(
        ctx: Any,
        side: Any,
        number: int,
        index: int,
        token: Tensor,
        values: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Normalize ``values`` (B, C, …); ``weight`` and ``bias`` are (C,).

        The order of the tokens is that in which the norms are computed backwards.
        """
        ctx.side, ctx.number, ctx.index, ctx.dtype = side, number, index, values.dtype
        ctx.learns = weight is not None, bias is not None
        channels = values.new_zeros(values.shape[1], dtype=widened(values[:0]).dtype)
        brought = values, channels + 1 if weight is None else weight, channels if bias is None else bias
        output, *saved = side.meet(number, index, brought, partial(side.normalized, index))
        ctx.save_for_backward(*saved)
        return output, token.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, token: Tensor) -> tuple[Any, ...]:
        brought = widened(gradient), *ctx.saved_tensors
        total = ctx.side.exchange.total
        inner, *outer = ctx.side.meet(ctx.number, ctx.index, brought, partial(gradients, total))
        learned = [one if learns else None for one, learns in zip(outer, ctx.learns, strict=True)]
        return None, None, None, token, inner.to(ctx.dtype), *learned


def normalized(
    norm: Any, momentum: float, total: Total, check: Callable[[Tensor], None], brought: Sequence[Any]
) -> list[tuple[Tensor, ...]]:
    """Normalize the values of all micro-batches, in two passes over them, and let their statistics in.

    Args:
        norm: whose running statistics and ``eps`` count.
        momentum: of the running statistics.
        total: adds up.
        check: is told the number of values, a scalar.
        brought: values (B, C, …), weight (C,) and bias (C,) of each.

    Returns:
        For each the output, and what :func:`gradients` needs.
    """
    wide = [widened(values) for values, _, _ in brought]
    dims = _dims(wide[0])
    size = wide[0].new_tensor([0.0])
    first = total([torch.cat([v.sum(dims), size + v.numel() / v.shape[1]]) for v in wide])
    number = first[-1]
    check(number)
    mean = first[:-1] / number
    squares = total([(v - _shaped(mean, v)).square().sum(dims) for v in wide])
    inverse = torch.rsqrt(squares / number + norm.eps)
    if norm.running_mean is not None:
        unbiased = squares / (number - 1).clamp(min=1)
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
        norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), momentum)
    answers: list[tuple[Tensor, ...]] = []
    for v, (values, weight, bias) in zip(wide, brought, strict=True):
        normal = (v - _shaped(mean, v)) * _shaped(inverse, v)
        output = (normal * _shaped(weight, v) + _shaped(bias, v)).to(values.dtype)
        answers.append((output, normal, weight, inverse, number))
    return answers


def gradients(total: Total, brought: Sequence[Any]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Gradients of the values, weight and bias of each micro-batch, which brings that of its output."""
    for_bias = [g.sum(_dims(g)) for g, *_ in brought]
    for_weight = [(g * normal).sum(_dims(g)) for g, normal, *_ in brought]
    leaves = [torch.cat([b, w]) for b, w in zip(for_bias, for_weight, strict=True)]
    number = brought[0][-1]
    plain, scaled = (total(leaves) / number).chunk(2)
    inner = [
        _shaped(weight * inverse, g) * (g - _shaped(plain, g) - normal * _shaped(scaled, g))
        for g, normal, weight, inverse, _ in brought
    ]
    return list(zip(inner, for_weight, for_bias, strict=True))


def widened(values: Tensor) -> Tensor:
    """Return values (B, C, …) in the precision in which they are added up."""
    return values if values.dtype == torch.float64 else values.float()


def _dims(values: Tensor) -> list[int]:
    """All but the channels'."""
    return [0, *range(2, values.ndim)]


def _shaped(channels: Tensor, like: Tensor) -> Tensor:
    """(C,) -> (1, C, 1, …), as many dimensions as ``like``."""
    return channels.view(1, -1, *[1] * (like.ndim - 2))
