"""An autograd function for batch norm that treats several micro-batches as one batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Total = Callable[[Iterable[Tensor]], Tensor]
"""Adds up one vector (N,) per micro-batch over all ranks."""
Statistics = tuple[Tensor, Tensor, Tensor]
"""Mean (C,), inverse standard deviation (C,) and number of values (scalar) over all micro-batches."""


class _Block(threading.local):
    """This thread's norm statistics in a block with activation checkpointing.

    ``computed`` collects them during the first computation, and ``known`` yields them in the recomputation.
    """

    computed: list[Statistics] | None = None
    known: Iterator[Statistics] | None = None


_BLOCK = _Block()


def recomputation_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return a context for computing a block, and one for recomputing it with the same statistics."""
    statistics: list[Statistics] = []

    @contextmanager
    def first() -> Iterator[None]:
        before, _BLOCK.computed = _BLOCK.computed, statistics
        try:
            yield
        finally:
            _BLOCK.computed = before

    @contextmanager
    def second() -> Iterator[None]:
        before, _BLOCK.known = _BLOCK.known, iter(statistics)
        try:
            yield
        finally:
            _BLOCK.known = before

    return first(), second()


def is_recomputed() -> bool:
    """Check whether this thread is recomputing a block."""
    return _BLOCK.known is not None


class GlobalNorm(torch.autograd.Function):
    """One micro-batch's part of a batch norm over all micro-batches (Ioffe & Szegedy, 2015).

    Every micro-batch has a separate graph. In both passes, the graphs wait for each other at the norm.
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
        """Normalize ``values`` (B, C, …) with ``weight`` and ``bias`` (C,).

        Passing the token through all norms fixes their order in the backward pass.
        """
        ctx.side, ctx.number, ctx.index, ctx.dtype = side, number, index, values.dtype
        ctx.learns = weight is not None, bias is not None
        wide = widened(values)
        if _BLOCK.known is not None:
            statistics = next(_BLOCK.known)
        else:
            statistics = side.meet(number, index, wide, partial(side.statistics, index))
            if _BLOCK.computed is not None:
                _BLOCK.computed.append(statistics)
        mean, inverse, count = statistics
        normal = (wide - _shaped(mean, wide)) * _shaped(inverse, wide)
        scale = torch.ones_like(mean) if weight is None else weight
        shift = torch.zeros_like(mean) if bias is None else bias
        ctx.save_for_backward(normal, scale, inverse, count)
        return (normal * _shaped(scale, wide) + _shaped(shift, wide)).to(values.dtype), token.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, token: Tensor) -> tuple[Any, ...]:
        inputs = widened(gradient), *ctx.saved_tensors
        total = ctx.side.exchange.total
        inner, *outer = ctx.side.meet(ctx.number, ctx.index, inputs, partial(gradients, total))
        learned = [one if learns else None for one, learns in zip(outer, ctx.learns, strict=True)]
        return None, None, None, token, inner.to(ctx.dtype), *learned


def batch_statistics(
    norm: Any, momentum: float, total: Total, check: Callable[[Tensor], None], wide: Sequence[Tensor]
) -> list[Statistics]:
    """Return the statistics over all micro-batches, and update the norm's running statistics.

    They are computed in two passes over ``wide``, the values (B, C, …) of each micro-batch, and returned once
    per micro-batch. ``check`` is called with the number of values, a scalar.
    """
    dims = _dims(wide[0])
    # new_tensor would wait for the GPU, because it copies from the host.
    sizes = [wide[0].new_full((1,), v.numel() / v.shape[1]) for v in wide]
    first = total([torch.cat([v.sum(dims), size]) for v, size in zip(wide, sizes, strict=True)])
    number = first[-1]
    check(number)
    mean = first[:-1] / number
    squares = total([(v - _shaped(mean, v)).square().sum(dims) for v in wide])
    inverse = torch.rsqrt(squares / number + norm.eps)
    if norm.running_mean is not None:
        unbiased = squares / (number - 1).clamp(min=1)
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
        norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), momentum)
    return [(mean, inverse, number)] * len(wide)


def gradients(total: Total, inputs: Sequence[Any]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return each micro-batch's gradients for values, weight and bias, given the gradient of its output."""
    for_bias = [g.sum(_dims(g)) for g, *_ in inputs]
    for_weight = [(g * normal).sum(_dims(g)) for g, normal, *_ in inputs]
    leaves = [torch.cat([b, w]) for b, w in zip(for_bias, for_weight, strict=True)]
    number = inputs[0][-1]
    plain, scaled = (total(leaves) / number).chunk(2)
    inner = [
        _shaped(weight * inverse, g) * (g - _shaped(plain, g) - normal * _shaped(scaled, g))
        for g, normal, weight, inverse, _ in inputs
    ]
    return list(zip(inner, for_weight, for_bias, strict=True))


def widened(values: Tensor) -> Tensor:
    """Convert values (B, C, …) to the precision of sums: float32, or float64 for float64 values."""
    return values if values.dtype == torch.float64 else values.float()


def _dims(values: Tensor) -> list[int]:
    return [0, *range(2, values.ndim)]


def _shaped(channels: Tensor, like: Tensor) -> Tensor:
    """Reshape (C,) to (1, C, 1, …) with the number of dimensions of ``like``."""
    return channels.view(1, -1, *[1] * (like.ndim - 2))
