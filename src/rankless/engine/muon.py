"""Muon, an optimizer that orthogonalizes the updates of weight matrices, with AdamW for other parameters.

Sources: K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024); J. Liu et al.,
"Muon is scalable for LLM training" (2025) for scaling the updates, so that AdamW's learning rate and
weight decay can be used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rankless.world.process_group import World
from rankless.world.uncompiled import PlainAdamW

LEAST = 16  # minimum rows and columns; AdamW updates smaller matrices, such as depth-wise filters
COEFFICIENTS = 3.4445, -4.775, 2.0315  # of the polynomial that moves singular values close to 1
ITERATIONS = 5
RMS = 0.2  # root mean square of AdamW's steps, in learning rates


def is_matrix(weight: Tensor) -> bool:
    """Check whether a weight, (outputs, inputs, …), is a matrix large enough for Muon."""
    if weight.ndim < 2 or weight.shape[1] < 2 or weight.is_complex():
        return False
    return min(weight.shape[0], weight.shape[1:].numel()) >= LEAST


def orthogonal(matrix: Tensor) -> Tensor:
    """Return approximately U V^T for a matrix U S V^T, (A, B), with singular values of about 0.7 to 1.2.

    The Newton-Schulz iterations use the matrix's own dtype, which may be bfloat16.
    """
    a, b, c = COEFFICIENTS
    x = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / matrix.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrix.shape[0] > matrix.shape[1] else x


class Muon(PlainAdamW):
    """Muon for parameter groups with a (Nesterov) ``momentum``, and AdamW for other groups.

    Each rank of ``world`` orthogonalizes its share of the matrices, in ``dtype``, and sends the results to
    all other ranks. The results do not depend on which rank computes them.
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, world: World | None, dtype: torch.dtype, **options: Any
    ) -> None:
        super().__init__(groups, **options)
        self.world, self.dtype = world, dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        groups = self.param_groups
        for group in groups:
            if "momentum" in group:
                self._step_matrices(group)
        self.param_groups = [group for group in groups if "momentum" not in group]
        try:
            super().step()
        finally:
            self.param_groups = groups

    def _step_matrices(self, group: dict[str, Any]) -> None:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        for weight in weights:
            state = self.state[weight]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(weight)
            state["momentum_buffer"].lerp_(weight.grad, 1 - group["momentum"])
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        for weight, rows in zip(weights, self._directions(weights, group["momentum"]), strict=True):
            shape = len(weight), *weight.shape[2:], weight.shape[1]
            direction = rows.view(shape).movedim(-1, 1).to(weight.dtype)
            weight.add_(direction, alpha=-group["lr"] * RMS * math.sqrt(max(rows.shape)))

    def _directions(self, weights: Sequence[Tensor], momentum: float) -> list[Tensor]:
        """Return the orthogonalized update of each weight, (outputs, all other dimensions flattened)."""
        size, rank = (self.world.size, self.world.rank) if self.world else (1, 0)
        shares = _shares([_work(weight) for weight in weights], size)

        def direction(weight: Tensor) -> Tensor:
            ahead = weight.grad.lerp(self.state[weight]["momentum_buffer"], momentum)  # type: ignore[union-attr]
            # In the order of channels_last memory, this is a view.
            return orthogonal(ahead.movedim(1, -1).flatten(1).to(self.dtype))

        found = {number: direction(weights[number]) for number in shares[rank]}
        if self.world and size > 1:
            sizes = [[weights[number].numel() for number in share] for share in shares]
            for share, parts in zip(shares, self._gathered(found.values(), sizes, self.world), strict=True):
                found |= {n: part.view(len(weights[n]), -1) for n, part in zip(share, parts, strict=True)}
        return [found[number] for number in range(len(weights))]

    def _gathered(
        self, mine: Iterable[Tensor], sizes: Sequence[Sequence[int]], world: World
    ) -> list[Sequence[Tensor]]:
        """Return the flattened matrices of every rank. Those of rank r have the lengths ``sizes[r]``."""
        length = max(map(sum, sizes))
        packed = torch.zeros(length, dtype=self.dtype, device=world.device)
        own = packed[: sum(sizes[world.rank])]
        for place, matrix in zip(own.split(list(sizes[world.rank])), mine, strict=True):
            place.copy_(matrix.flatten())
        gathered = packed.new_empty(world.size * length)
        with world.transport.waits.waiting():
            world.transport.all_gather(gathered.view(torch.uint8), packed.view(torch.uint8)).wait()
        return [part[: sum(s)].split(list(s)) for s, part in zip(sizes, gathered.split(length), strict=True)]


def _work(weight: Tensor) -> int:
    """Return a number proportional to the count of multiplications in :func:`orthogonal`."""
    rows, columns = len(weight), weight[0].numel()
    return min(rows, columns) ** 2 * (2 * max(rows, columns) + min(rows, columns))


def _shares(work: Sequence[int], size: int) -> list[list[int]]:
    """Return each rank's share of the work, assigned largest first to the least busy rank."""
    shares: list[list[int]] = [[] for _ in range(size)]
    sums = [0] * size
    for number in sorted(range(len(work)), key=lambda number: -work[number]):
        rank = sums.index(min(sums))
        shares[rank].append(number)
        sums[rank] += work[number]
    return shares
