"""Compiled passes have the same bits on any number of ranks, and right gradients, or are refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankless.engine.compiled import compilers
from rankless.engine.environment import compare_ranks
from rankless.engine.state import TrainingState
from rankless.engine.totals import Flags
from rankless.errors import UserError
from rankless.hardware.computing import computes_like
from rankless.models.weights_files.weights import digest_file
from rankless.recipe.load import default
from rankless.recipe.schema import Batch, Check, Evaluate, Recipe, Schedule
from rankless.runs.directory import weights_of
from rankless.structures import LossSum
from rankless.world.process_group import World, join
from support.small_task import Regression, steps, train
from support.thorough import THOROUGH
from support.thread_ranks import CPU

pytestmark = [
    pytest.mark.skipif(compilers()["C++ compiler"] == "missing", reason="there is no C++ compiler"),
    pytest.mark.processes,  # the compiler of C++
]

COMPILED = Recipe(batch=Batch(images=8, micro=2), precision="fp32", compute="compiled")


class Net(nn.Module):
    """A norm that is called twice, dropout, a counter, and an attribute that the loss reads."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first, self.norm, self.dropout = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(dropout)
        self.last = nn.Linear(6, 1)
        self.register_buffer("passes", torch.zeros(()))
        self.penalty: Any = 0.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.norm(self.first(x)).sigmoid())
        if self.training:
            with torch.no_grad():
                self.passes += 1
        self.penalty = x.square().mean()
        out: Tensor = self.last(self.dropout(x))
        return out


class Task(Regression):
    def __init__(self, dropout: float = 0.3) -> None:
        self.dropout = dropout

    def model(self) -> nn.Module:
        return Net(self.dropout)

    def loss(self, model: Any, batch: Tensor) -> LossSum:
        assert isinstance(model, Net)
        # Lists and numbers on the CPU: the loss is not compiled.
        losses = [(row - 1).square().sum() for row in model(batch)]
        return LossSum(torch.stack(losses).sum() + model.penalty, len([one.item() for one in losses]))


def batch(step: int, leaf: int, rows: int = 2) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(100 * step + leaf))


def trained(world: World, task: Any, recipe: Recipe) -> dict[str, Tensor]:
    with computes_like(recipe):
        state = TrainingState(task, recipe, world, 100)
        for _ in steps(state, 2, batch):
            pass
        return {name: value.clone() for name, value in state.model.state_dict().items()}


def run(world: World, folder: str, epochs: int, resume: bool = False) -> bool | list[str]:
    recipe = replace(
        COMPILED,
        epochs=epochs,
        schedule=Schedule(name="constant", warmup=0),
        check=Check(recompute=1),  # every step compares the results of ranks
        evaluate=Evaluate(every=2),
    )
    return train(world, Task(), recipe, folder, resume=resume)


@pytest.mark.slow
def test_bits_do_not_depend_on_the_number_of_ranks_and_resumptions(ranks: Any, tmp_path: Path) -> None:
    ranks.patience = 900  # each rank compiles
    folders = [tmp_path / str(size) for size in ((1, 2, 3) if THOROUGH else (1, 2))]
    for folder in folders:
        folder.mkdir()
        size = int(folder.name)
        assert ranks(size, run, str(folder), 1 if folder == folders[-1] else 2) == [True] * size
    assert ranks(1, run, str(folders[-1]), 2, True) == [True]
    assert len({digest_file(weights_of(folder / "last.safetensors")) for folder in folders}) == 1


ROWS = 16  # a norm of two rows amplifies float32's rounding, compiled or not


def gradients(task: Any, recipe: Recipe, dtype: torch.dtype) -> dict[str, Tensor]:
    """The summed gradients of a step, computed in ``dtype``."""
    with computes_like(recipe):
        state = TrainingState(task, recipe, World(0, 1, CPU, 0), 100)
        state.training_mode()
        if dtype == torch.float64:
            state.model.double()
            sums: dict[str, Tensor] = {}
            for leaf in range(4):
                state.model.zero_grad()
                task.loss(state.model, batch(0, leaf, ROWS).double()).sum.backward()
                for name, parameter in state.model.named_parameters():
                    sums[name] = sums.get(name, 0) + parameter.grad
            return sums
        state.begin(0)
        state.compute(0, (batch(0, leaf, ROWS) for leaf in range(4)), Flags())
        return {name: parameter.grad.double() for name, parameter in state.model.named_parameters()}


def test_gradients_are_those_of_float64() -> None:
    exact = gradients(Task(0.0), replace(COMPILED, compute="eager"), torch.float64)
    found = gradients(Task(0.0), COMPILED, torch.float32)
    for name, gradient in exact.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5, msg=name)
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder.stat().st_mode & 0o077 == 0 and [*folder.rglob("*.so")]


class Branching(Net):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x))
        return out if float(out.sum()) > 0 else -out


def test_a_network_that_cannot_be_compiled_says_so() -> None:
    task = Task()
    task.model = lambda: Branching(0.0)  # type: ignore[method-assign]
    with pytest.raises(UserError) as raised:
        trained(World(0, 1, CPU, 0), task, COMPILED)
    (problem,) = raised.value.problems
    assert problem.startswith("compute is 'compiled', but the network cannot be compiled: ")
    assert "in forward, test_compiled.py, line " in problem and "use compute=eager" in problem


def test_a_missing_compiler_is_reported_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with (
        join() as world,
        pytest.raises(UserError, match=r"needs a C\+\+ compiler, but '/nowhere/g\+\+' cannot be run"),
    ):
        compare_ranks(world, COMPILED, None)


def test_a_loss_that_does_not_call_the_model_is_refused() -> None:
    task = Task()
    task.loss = lambda model, batch: LossSum(model.last(model.first(batch)).sum(), 1.0)  # type: ignore[method-assign]
    with pytest.raises(UserError, match="the loss does not call the model, so nothing would be compiled"):
        trained(World(0, 1, CPU, 0), task, replace(COMPILED, find_unused_parameters=True))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("batch_norm=sync", "batch_norm"),
        ("cpu_isa=avx2", "cpu_isa"),
        ("data.multi_scale=0.5", "data.multi_scale"),
        ("model.checkpointing=true", "model.checkpointing"),
        ("model.name=hf/dfine_n", "model.name"),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_its_key(change: str, key: str) -> None:
    with pytest.raises(UserError, match=f"'compute' is 'compiled', but {key} is .*, or compute=eager"):
        default(["compute=compiled", change])
