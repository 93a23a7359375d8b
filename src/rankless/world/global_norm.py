"""Batch norm of several micro-batches as one batch, as a function of autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class GlobalNorm(torch.autograd.Function):
    """Batch norm of several micro-batches as one batch (Ioffe & Szegedy 2015), two passes over the values."""

    @staticmethod
    def forward(
        ctx: Any,
        side: Any,
        norm: Any,
        index: int,
        momentum: float,
        count: int,
        token: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        """Normalize ``count`` tensors (B, C, ...); their weights (C,) and biases (C,) follow them."""
        values, weights = tensors[:count], tensors[count : 2 * count]
        biases = tensors[2 * count :]
        dims = [0, *range(2, values[0].ndim)]
        wide = [widened(v) for v in values]
        size = values[0].new_tensor([0.0], dtype=wide[0].dtype)
        first = side.exchange.total([torch.cat([v.sum(dims), size + v.numel() / v.shape[1]]) for v in wide])
        number = first[-1]
        side.check(index, number)
        mean = first[:-1] / number
        squares = side.exchange.total([(v - _shaped(mean, v)).square().sum(dims) for v in wide])
        variance = squares / number
        inverse = torch.rsqrt(variance + norm.eps)
        if norm.running_mean is not None:
            unbiased = squares / (number - 1).clamp(min=1)
            norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
            norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), momentum)
        normal = [(v - _shaped(mean, v)) * _shaped(inverse, v) for v in wide]
        outputs = [
            (n * _shaped(w, n) + _shaped(b, n)).to(v.dtype)
            for n, w, b, v in zip(normal, weights, biases, values, strict=True)
        ]
        ctx.side, ctx.count, ctx.dims, ctx.dtypes = side, count, dims, [v.dtype for v in values]
        ctx.save_for_backward(number, inverse, *normal, *weights)
        return (*outputs, token.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        number, inverse, *rest = ctx.saved_tensors
        normal, weights = rest[: ctx.count], rest[ctx.count :]
        outer = [widened(g) for g in gradients[:-1]]
        for_bias = [g.sum(ctx.dims) for g in outer]
        for_weight = [(g * n).sum(ctx.dims) for g, n in zip(outer, normal, strict=True)]
        leaves = [torch.cat([b, w]) for b, w in zip(for_bias, for_weight, strict=True)]
        plain, scaled = (ctx.side.exchange.total(leaves) / number).chunk(2)
        inner = [
            (_shaped(w * inverse, g) * (g - _shaped(plain, g) - n * _shaped(scaled, g))).to(dtype)
            for g, n, w, dtype in zip(outer, normal, weights, ctx.dtypes, strict=True)
        ]
        return (None, None, None, None, None, gradients[-1], *inner, *for_weight, *for_bias)


def widened(values: Tensor) -> Tensor:
    """Return values (B, C, …) in the precision in which they are added up."""
    return values if values.dtype == torch.float64 else values.float()


def _shaped(channels: Tensor, like: Tensor) -> Tensor:
    """(C,) -> (1, C, 1, …), as many dimensions as ``like``."""
    return channels.view(1, -1, *[1] * (like.ndim - 2))
