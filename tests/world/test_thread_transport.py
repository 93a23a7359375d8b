"""Ranks that are threads of one process: what they exchange in memory, and what they share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor
from torch.nn import functional

from rankless.engine.shared_process import OwnGenerator, autocast_for
from rankless.world.process_group import LostPeerError, World
from support.thread_ranks import CPU, together

from .test_exchange import LENGTHS, reference, several_under_way, totals


@pytest.mark.parametrize("size", [1, 3, 4])
def test_totals_are_those_of_one_process(size: int) -> None:
    answers = together(size, totals)
    for (leaves, length), found in answers[0].items():
        assert found == reference(leaves, length), (leaves, length)
    assert all(answer == answers[0] for answer in answers)


def test_several_exchanges_may_be_under_way() -> None:
    expected = [reference(8, length) for length in LENGTHS[2:5]]
    assert together(3, several_under_way) == [(expected, True)] * 3


def test_objects_go_around_as_between_processes() -> None:
    def work(world: World) -> tuple[Any, ...]:
        mine = {"rank": world.rank, "values": torch.arange(world.rank)}
        gathered = world.gather(mine)
        world.barrier()
        last = world.broadcast(mine, world.size - 1)
        mine["values"] += 1  # is seen by nobody else
        return gathered and [one["rank"] for one in gathered], last["values"].tolist(), world.all_gather(7)

    answers = together(3, work)
    assert [gathered for gathered, _, _ in answers] == [[0, 1, 2], None, None]
    assert [values for _, values, _ in answers] == [[0, 1], [0, 1], [1, 2]]
    assert all(sevens == [7, 7, 7] for _, _, sevens in answers)


def test_who_waits_for_a_rank_that_has_ended_gets_an_error() -> None:
    """And only who waits for it: what it has sent before still arrives."""

    def work(world: World) -> Any:
        if world.rank == 2:
            world.gather("the last word")
            raise ValueError("gone")
        gathered = world.gather(world.rank)
        with pytest.raises(LostPeerError, match="rank 2 has exited"):
            world.transport.all_gather(torch.empty(3), torch.zeros(1)).wait()
        return gathered

    first, second, third = together(3, work)
    assert (first, second) == ([0, 1, "the last word"], None)
    assert isinstance(third, ValueError)


def draws(x: Tensor) -> list[Tensor]:
    """What layers and users draw with, by operations that take a generator and by those that take none."""
    return [
        functional.dropout(x, 0.3),
        functional.alpha_dropout(x, 0.3, training=True),
        functional.dropout2d(x[None, :, :, None], 0.5),
        torchvision.ops.stochastic_depth(x, 0.5, "row"),
        torchvision.ops.drop_block2d(x[None, None], 0.2, 3),
        functional.rrelu(x, training=True),
        torch.rand(3),
        torch.randn_like(x),
        torch.randperm(9).float(),
        torch.multinomial(x.detach().abs(), 2).float(),
        torch.native_dropout(x, 0.4, True)[0],
        functional.gumbel_softmax(x),
        functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3),
        torch.empty(5).exponential_(),
        torch.nn.Linear(3, 3).weight.detach(),
    ]


def test_a_generator_of_ones_own_draws_what_the_default_one_would() -> None:
    x = torch.linspace(-1, 1, 64).view(8, 8).requires_grad_()
    torch.manual_seed(7)
    expected = draws(x)
    torch.manual_seed(8)
    with OwnGenerator(7):
        found = draws(x)
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert torch.equal(one, other), number
    assert all(
        one.grad_fn is None or other.grad_fn is not None for one, other in zip(expected, found, strict=True)
    )


def test_threads_draw_side_by_side() -> None:
    x = torch.linspace(-1, 1, 64).view(8, 8)
    expected = []
    for seed in range(3):
        torch.manual_seed(seed)
        expected.append([draw for _ in range(5) for draw in draws(x)])

    def work(world: World) -> list[Tensor]:
        with OwnGenerator(world.rank):
            return [draw for _ in range(5) for draw in draws(x)]

    for one, other in zip(expected, together(3, work), strict=True):
        assert all(map(torch.equal, one, other))


def test_the_end_of_one_pass_leaves_the_casts_of_the_others() -> None:
    """A weight that is used twice is cast once, so that its gradients are added in bfloat16, as ever."""
    torch.manual_seed(3)
    x, weights = torch.randn(32, 16), [torch.randn(16, 16, requires_grad=True) for _ in range(2)]

    def twice(weight: Tensor, between: Callable[[], object]) -> Tensor:
        once = functional.linear(x, weight)
        between()
        return functional.linear(once, weight).float().square().sum()

    with torch.autocast("cpu", torch.bfloat16):
        loss = twice(weights[0], lambda: None)
    (expected,) = torch.autograd.grad(loss, weights[0])
    autocast, inside, ended = autocast_for(shared=True), threading.Event(), threading.Event()

    def work(world: World) -> Tensor | None:
        if world.rank == 0:
            with autocast("bf16", CPU):
                loss = twice(weights[0], lambda: (inside.set(), ended.wait(30)))
            return torch.autograd.grad(loss, weights[0])[0]
        inside.wait(30)
        with autocast("bf16", CPU):
            functional.linear(x, weights[1])
        ended.set()
        return None

    found, _ = together(2, work)
    assert torch.equal(found, expected)
    # The last one has cleared the cache: other weights in the same memory are cast again.
    with torch.no_grad():
        weights[0] *= 2
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(functional.linear(x, weights[0]), (x.bfloat16() @ weights[0].T.bfloat16()))
