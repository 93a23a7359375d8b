"""Gradients over real ranks: the bits of one process that works through all micro-batches by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.world import reduce
from rankless.world.exchange import Exchange
from rankless.world.join import World
from rankless.world.share import own_micro_batches

STEPS = 3  # DDP lays its buckets out anew after the first
PER_MICRO = 2


class Net(nn.Module):
    """Convolutions whose memory is not in the order of their shape, norms, dropout, a frozen bias."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(5)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Conv2d(5, 7, (3, 2))
        self.linear = nn.Linear(7, 4)
        self.linear.bias.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        x = self.second(self.dropout(self.norm(self.first(images)).relu()))
        out: Tensor = self.linear(x.mean((2, 3))).square().sum()
        return out


def net(dropout: float, dtype: torch.dtype) -> Net:
    torch.manual_seed(3)
    return Net(dropout).to(dtype).to(memory_format=torch.channels_last).train()


def images(step: int, leaf: int, dtype: torch.dtype) -> Tensor:
    chance = np.random.default_rng([step, leaf])
    return torch.from_numpy(chance.normal(size=(PER_MICRO, 3, 6, 5)) * 10 ** chance.uniform(-2, 1)).to(dtype)


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [p.grad.detach().clone() for p in model.parameters() if p.grad is not None]


def summed(
    world: World, leaves: int, dropout: float, dtype: torch.dtype, exact: bool, bucket_mib: float
) -> tuple[list[list[np.ndarray]], int, bool]:
    """The gradients after each step, how many buckets the last had, and whether they lie as their weights."""
    before, reduce.BUCKET_MIB = reduce.BUCKET_MIB, bucket_mib  # type: ignore[assignment]
    model = net(dropout, dtype)
    plan = Exchange(leaves, world.rank, world.size)
    started = 0

    def start(*arguments: Any) -> Any:
        nonlocal started
        started += 1
        return Exchange.start(plan, *arguments)

    plan.start = start  # type: ignore[method-assign]
    sums = reduce.GradientSum(model, plan, exact=exact)
    reduce.BUCKET_MIB = before
    found = []
    for step in range(STEPS):
        started = 0
        for leaf in own_micro_batches(leaves, world.rank, world.size):
            torch.manual_seed(100 * step + leaf)
            with sums.micro_batch(leaf):
                sums.module(images(step, leaf, dtype)).backward()
        found.append([g.contiguous().numpy() for g in gradients_of(model)])
        like = all(p.grad is None or p.grad.stride() == p.stride() for p in model.parameters())
        model.zero_grad(set_to_none=True)
    return found, started, like


def tree(values: Sequence[Any], add: Callable[[Any, Any], Any], width: int = 0) -> Any:
    """The sum as the tree is defined."""
    width = width or 1 << (len(values) - 1).bit_length()
    if width == 1:
        return values[0]
    left = tree(values[: width // 2], add, width // 2)
    rest = values[width // 2 :]
    return add(left, tree(rest, add, width // 2)) if rest else left


def by_itself(leaves: int, dropout: float, dtype: torch.dtype) -> list[list[np.ndarray]]:
    """Plain autograd, one micro-batch at a time, and the tree in numpy."""
    model = net(dropout, dtype)
    found = []
    for step in range(STEPS):
        each = []
        for leaf in range(leaves):
            torch.manual_seed(100 * step + leaf)
            model.zero_grad(set_to_none=True)
            model(images(step, leaf, dtype)).backward()
            each.append([g.contiguous().numpy() for g in gradients_of(model)])
        found.append(tree(each, lambda one, other: [a + b for a, b in zip(one, other, strict=True)]))
    return found


def digest(steps: list[list[np.ndarray]]) -> list[str]:
    return [hashlib.sha256(b"".join(g.tobytes() for g in step)).hexdigest() for step in steps]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("size", "leaves"), [(1, 1), (1, 7), (1, 8), (2, 6), (2, 8), (3, 7), (3, 8), (4, 6), (4, 7), (4, 8)]
)
def test_the_bits_are_those_of_one_process(ranks: Any, size: int, leaves: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks have
    expected = by_itself(leaves, 0.3, torch.float32)
    torch.set_num_threads(threads)
    for found, buckets, like in ranks(size, summed, leaves, 0.3, torch.float32, True, 0.0002):
        assert digest(found) == digest(expected)
        assert buckets > 1, "one bucket alone proves little"
        assert like


@pytest.mark.processes
@pytest.mark.parametrize(("size", "leaves"), [(2, 8), (3, 7)])
def test_it_is_the_gradient_of_the_whole_loss(ranks: Any, size: int, leaves: int) -> None:
    """Against autograd through all micro-batches at once, in float64."""
    model = net(0.0, torch.float64)
    answers = ranks(size, summed, leaves, 0.0, torch.float64, True, 8)
    for step in range(STEPS):
        model.zero_grad(set_to_none=True)
        torch.stack([model(images(step, leaf, torch.float64)) for leaf in range(leaves)]).sum().backward()
        for found, _, _ in answers:
            for got, expected in zip(found[step], gradients_of(model), strict=True):
                largest = float(expected.abs().max())
                np.testing.assert_allclose(got, expected.numpy(), rtol=0, atol=1e-12 * max(largest, 1))


@pytest.mark.processes
@pytest.mark.parametrize("size", [1, 2, 3])
def test_fast_agrees_but_for_rounding(ranks: Any, size: int) -> None:
    expected = by_itself(8, 0.3, torch.float32)
    answers = ranks(size, summed, 8, 0.3, torch.float32, False, 0.0002)
    for found, _, _ in answers:
        assert digest(found) == digest(answers[0][0])
        for step, wanted in zip(found, expected, strict=True):
            for got, gradient in zip(step, wanted, strict=True):
                np.testing.assert_allclose(got, gradient, rtol=0, atol=1e-5 * np.abs(gradient).max())


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x).sum()
        return out


def forgets_a_layer(world: World) -> str:
    sums = reduce.GradientSum(Lazy(), Exchange(2, world.rank, world.size), exact=True)
    try:
        with sums.micro_batch(0):
            sums.module(torch.ones(1, 2)).backward()
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.processes
def test_a_parameter_without_a_gradient_is_told(ranks: Any) -> None:
    (said,) = ranks(1, forgets_a_layer)
    assert said.startswith("unused.weight, unused.bias: a trainable parameter of the model took no part")
