"""Gradients over real ranks: the bits of one process that works through all micro-batches by itself."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankless.world import exchange, reduce
from rankless.world.exchange import Exchange
from rankless.world.process_group import World
from rankless.world.transport import PROCESS_GROUP
from rankless.world.tree import own_micro_batches
from support.fixed_tree import tree

STEPS = 3  # the buckets are laid out again after the first
PER_MICRO = 2


class Net(nn.Module):
    """Convolutions whose memory is not in the order of their shape, norms, dropout, a frozen bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(5)
        self.dropout = nn.Dropout(0.3)
        self.second = nn.Conv2d(5, 7, (3, 2))
        self.linear = nn.Linear(7, 4)
        self.linear.bias.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        x = self.second(self.dropout(self.norm(self.first(images)).relu()))
        out: Tensor = self.linear(x.mean((2, 3))).square().sum()
        return out


def net() -> Net:
    torch.manual_seed(3)
    return Net().to(memory_format=torch.channels_last).train()


def images(step: int, leaf: int) -> Tensor:
    rng = np.random.default_rng([step, leaf])
    return torch.from_numpy(rng.normal(size=(PER_MICRO, 3, 6, 5)) * 10 ** rng.uniform(-2, 1)).float()


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [p.grad.detach().clone() for p in model.parameters() if p.grad is not None]


def summed(
    world: World,
    leaves: int,
    bucket_mib: float,
    message: int,
    shared: bool,
) -> tuple[list[list[np.ndarray]], int, bool]:
    """Each step's gradients, how many exchanges the last had, and whether they lie as their weights."""
    before, reduce.BUCKET_MIB = reduce.BUCKET_MIB, bucket_mib  # type: ignore[assignment]
    exchange.MESSAGE_BYTES, most = message, exchange.MESSAGE_BYTES
    model = net()
    layout = Exchange(leaves, world.rank, world.size)
    started = 0
    PROCESS_GROUP.on_one_machine = shared
    sums = reduce.GradientSum(model, layout, exact=True)
    PROCESS_GROUP.on_one_machine = False
    assert bool(sums.shared) == shared
    through: Any = sums.shared or layout

    def start(*arguments: Any) -> Any:
        nonlocal started
        started += 1
        return type(through).start(through, *arguments)

    through.start = start
    found = []
    for step in range(STEPS):
        started = 0
        sums.begin()
        for leaf in own_micro_batches(leaves, world.rank, world.size):
            torch.manual_seed(100 * step + leaf)
            sums.backward(model(images(step, leaf)), leaf)
        found.append([g.contiguous().numpy() for g in gradients_of(model)])
        like = all(p.grad is None or p.grad.stride() == p.stride() for p in model.parameters())
        model.zero_grad(set_to_none=True)
    exchange.MESSAGE_BYTES, reduce.BUCKET_MIB = most, before
    return found, started, like


def by_itself(leaves: int) -> list[list[np.ndarray]]:
    model = net()
    found = []
    for step in range(STEPS):
        each = []
        for leaf in range(leaves):
            torch.manual_seed(100 * step + leaf)
            model.zero_grad(set_to_none=True)
            model(images(step, leaf)).backward()
            each.append([g.contiguous().numpy() for g in gradients_of(model)])
        found.append(tree(each, lambda one, other: [a + b for a, b in zip(one, other, strict=True)]))
    return found


def digest(steps: list[list[np.ndarray]]) -> list[str]:
    return [hashlib.sha256(b"".join(g.tobytes() for g in step)).hexdigest() for step in steps]


BUCKETS = (0.0002, exchange.MESSAGE_BYTES, False)
MEMORY = (0.0002, exchange.MESSAGE_BYTES, True)
PARTS = (8, 40, False)  # 390 weights that learn, in messages of at most 10 to each rank


@pytest.mark.processes
@pytest.mark.parametrize(
    ("size", "leaves", "way"),
    [
        *((1, 1, BUCKETS), (1, 7, BUCKETS), (2, 6, BUCKETS), (3, 8, BUCKETS), (4, 7, BUCKETS)),
        *((2, 8, MEMORY), (3, 7, MEMORY), (4, 6, MEMORY), (2, 6, PARTS), (3, 7, PARTS)),
    ],
)
def test_the_bits_are_those_of_one_process(
    ranks: Any, size: int, leaves: int, way: tuple[float, int, bool]
) -> None:
    """Over sockets, in memory that the ranks share, and with buckets larger than a message."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks have
    expected = by_itself(leaves)
    torch.set_num_threads(threads)
    for found, exchanges, like in ranks(size, summed, leaves, *way):
        assert digest(found) == digest(expected)
        assert size == 1 or exchanges >= (390 / (10 * size) if way == PARTS else 2)  # one proves little
        assert like


class Branching(nn.Module):
    """A second head that only some micro-batches use; its first parameter has gradients of minus zero."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(1, 4))

    def forward(self, x: Tensor, second: bool) -> Tensor:
        y = self.trunk(x).tanh()
        out: Tensor = self.head(y - self.scale * 0.0).square().sum() if second else y.square().sum()
        return out


# Which of five micro-batches do not use the second head: odd ones, even ones, the last ones, none and all.
SKIPPING = [(1,), (0, 1), (3, 4), (2,), (), (0, 1, 2, 3, 4)]
FIVE = 5


def branching() -> Branching:
    torch.manual_seed(4)
    return Branching().double()


def row(leaf: int) -> Tensor:
    return torch.linspace(-1, 1 + leaf, 3, dtype=torch.float64).view(1, 3)


def with_branches(world: World, exact: bool) -> list[tuple[list[np.ndarray], Any]]:
    """For each of SKIPPING, the gradients of its second step, and what was not used."""
    found = []
    for skipping in SKIPPING:
        model = branching()
        layout = Exchange(FIVE, world.rank, world.size)
        sums = reduce.GradientSum(model, layout, exact=exact, zero_unused=True)
        for _ in range(2):
            sums.begin()
            for leaf in layout.own:
                sums.backward(model(row(leaf), leaf not in skipping), leaf)
            gradients = [g.numpy() for g in gradients_of(model)]
            model.zero_grad(set_to_none=True)
        found.append((gradients, {leaf: sorted(which) for leaf, which in sums.unused.items()}))
    return found


@pytest.mark.processes
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "fast"])
def test_a_missing_gradient_counts_as_zero(ranks: Any, exact: bool) -> None:
    worlds = {size: ranks(size, with_branches, exact) for size in (1, 2, 3, 5)}
    for case, skipping in enumerate(SKIPPING):
        model = branching()
        torch.stack([model(row(leaf), leaf not in skipping) for leaf in range(FIVE)]).sum().backward()
        expected = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        bits = set()
        for size, answers in worlds.items():
            reported: dict[int, list[int]] = {}
            for rank in range(size):
                gradients, unused = answers[rank][case]
                reported |= unused
                bits.add(b"".join(g.tobytes() for g in gradients))
                for got, wanted in zip(gradients, expected, strict=True):
                    np.testing.assert_allclose(got, wanted.numpy(), rtol=0, atol=1e-13)
            assert reported == dict.fromkeys(skipping, unused_numbers())
        assert len(bits) == 1 or not exact


def unused_numbers() -> list[int]:
    names = [name for name, _ in branching().named_parameters()]
    return [number for number, name in enumerate(names) if not name.startswith("trunk")]


def goes_on_alone(world: World, meeting: Path) -> bool:
    """Whether rank 0's backward pass got to the first layer while rank 1 had not begun its own."""
    before, reduce.BUCKET_MIB = reduce.BUCKET_MIB, 0.0002  # type: ignore[assignment]
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(6)))
    model[0].weight.register_hook(lambda _: (meeting / f"{step}").touch() if world.is_first else None)
    sums = reduce.GradientSum(model, Exchange(2, world.rank, world.size), exact=True)
    for step in range(STEPS):
        sums.begin()
        loss = model(torch.ones(1, 16)).sum()
        until = time.monotonic() + (20 if step == STEPS - 1 else 0)
        while not world.is_first and time.monotonic() < until and not (meeting / f"{step}").exists():
            time.sleep(0.01)
        there = world.is_first or (meeting / f"{step}").exists()
        sums.backward(loss, world.rank)
    reduce.BUCKET_MIB = before
    return there


@pytest.mark.processes
def test_the_backward_pass_waits_for_nobody_before_its_end(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, goes_on_alone, tmp_path) == [True, True]


def test_the_hooks_go_with_the_sum() -> None:
    model = net()
    sums = reduce.GradientSum(model, Exchange(2, 0, 1), exact=True)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert all(p._post_accumulate_grad_hooks for p in trained)
    del sums  # at once, without the garbage collector
    assert not any(p._post_accumulate_grad_hooks for p in trained)
