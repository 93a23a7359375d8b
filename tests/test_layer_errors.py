"""What PyTorch refuses because of the recipe is said in sentences that name the layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankless.engine.layer_errors import explained
from rankless.engine.state import TrainingState
from rankless.engine.totals import Flags
from rankless.errors import UserError
from rankless.hardware.computing import computes_like
from rankless.recipe.schema import Batch, Recipe
from rankless.structures import LossSum
from rankless.world.process_group import World

RECIPE = Recipe(batch=Batch(2, 1), precision="fp32")


class Unpooling(nn.Module):
    """Max-unpooling has no deterministic kernel, on the CPU neither."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
        self.conv = nn.Conv2d(1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.up(*self.down(self.conv(x)))
        return out


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        flat = gradient.clone().view(-1)
        return flat.put_(torch.tensor([0]), flat[:1].clone()).view_as(gradient)


class Backwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = InBackward.apply(self.conv(x))
        return out


def narrow() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 4), nn.Sequential(nn.BatchNorm2d(2)))


class Task:
    class_names: tuple[str, ...] = ()

    def __init__(self, make: Any) -> None:
        self.make = make

    def model(self) -> nn.Module:
        net: nn.Module = self.make()
        return net

    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        return LossSum(model(batch).square().sum(), torch.tensor(1.0))


def said(world: World, name: str, batch_norm: str) -> list[str]:
    make = {"unpooling": Unpooling, "backwards": Backwards, "narrow": narrow}[name]
    recipe = Recipe(batch=RECIPE.batch, precision="fp32", batch_norm=batch_norm)  # type: ignore[arg-type]
    with computes_like(recipe):
        state = TrainingState(Task(make), recipe, world, 4)  # type: ignore[arg-type]
        state.begin(0)
        try:
            with explained(recipe):
                batches = (torch.ones(1, 1, 4, 4) for _ in range(2))
                state.compute(0, batches, Flags())
        except UserError as error:
            return list(error.problems)
    return []


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("unpooling", "the layer 'up' (MaxUnpool2d) uses max_unpooling2d_forward_out, which has no"),
        ("backwards", "the backward pass uses put_, which has no deterministic"),
        ("narrow", "the layer '1.0' (BatchNorm2d) gets only one value per channel"),
    ],
)
def test_the_layer_and_the_way_out_are_named(ranks: Any, name: str, expected: str) -> None:
    ((text,),) = ranks(1, said, name, "micro")
    assert text.startswith(expected)
    assert ("reduce: fast" in text) or ("batch_norm to sync or frozen" in text and "batch.micro is 1" in text)


@pytest.mark.processes
@pytest.mark.parametrize("batch_norm", ["sync", "frozen"])
def test_the_way_out_of_one_value_is_one(ranks: Any, batch_norm: str) -> None:
    assert ranks(1, said, "narrow", batch_norm) == [[]]


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="out of luck"), explained(RECIPE):
        raise RuntimeError("out of luck")
