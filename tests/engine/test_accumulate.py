"""The gradients of a step are the same bits whichever rank works through which micro-batch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rankless.engine.accumulate import make_accumulator
from rankless.engine.running_statistics import RunningStatistics, batch_norms
from rankless.engine.schedule import set_rate
from rankless.engine.state import TrainingState
from rankless.engine.totals import Flags
from rankless.errors import UserError
from rankless.models.weights_files.weights import digest
from rankless.randomness import GENERATORS, key, torch_seed
from rankless.recipe.schema import Batch, Recipe
from rankless.structures import LossSum
from rankless.world.process_group import World, join
from support import networks_that_branch
from support.networks_that_branch import NETWORKS, images
from support.small_task import steps
from support.thorough import THOROUGH
from support.thread_ranks import CPU, together

ALONE = World(0, 1, CPU, 0)
"""A process that is the only rank."""


def recipe(micro_batches: int, **changes: Any) -> Recipe:
    batch = Batch(images=2 * micro_batches, micro=2)
    return Recipe(**{"batch": batch, "batch_norm": "sync", "find_unused_parameters": True, **changes})


def trained(world: World, recipe: Recipe, block: type[nn.Module]) -> str:
    task: Any = networks_that_branch.Task(recipe)
    task.blocks = (block,)
    state = TrainingState(task, recipe, world, 100)
    set_rate(state.optimizer, 0.1)
    # fp16 begins with a scale at which these gradients are infinite, and no step would be applied.
    state.scaler.load_state_dict({**state.scaler.state_dict(), "scale": 8.0})
    for _ in steps(state, 2, images):
        pass
    return digest(state.model.state_dict())


def branching(world: World, precision: str) -> dict[tuple[str, str], str]:
    return {
        (norms, block.__name__): trained(world, recipe(6, precision=precision, batch_norm=norms), block)
        for norms in ("sync", "micro", "frozen")
        for block in NETWORKS
    }


@pytest.mark.processes
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_no_number_of_ranks_changes_a_bit_of_networks_that_branch(ranks: Any, precision: str) -> None:
    (expected,) = ranks(1, branching, precision)
    assert len(set(expected.values())) == 3 * len(NETWORKS)
    for size in (2, 3, 4) if THOROUGH else (2, 4) if precision == "fp32" else (3,):
        for found in ranks(size, branching, precision):
            assert found == expected


WIDTH, ROWS, LEAVES = 4, 3, 4
Step = tuple[str, int, tuple[int, ...]]


@st.composite
def graphs(draw: st.DrawFn) -> list[Step]:
    """A network: kinds of operations, which of its layers they use, and which results so far they take."""
    steps: list[Step] = []
    for number in range(2, draw(st.integers(4, 10))):
        kind = draw(st.sampled_from(["linear", "norm", "norm", "add", "gate", "times", "tanh"]))
        count = draw(st.integers(2, 4)) if kind == "add" else 2 if kind in ("gate", "times") else 1
        taken = tuple(draw(st.integers(max(number - 4, 0), number - 1)) for _ in range(count))
        steps.append((kind, draw(st.integers(0, 1)), taken))
    return steps


class Graph(nn.Module):
    """Layers that may be used anywhere and any number of times; the loss takes every result.

    Args:
        steps: from :func:`graphs`.
        some: results that only some micro-batches' loss depends on.
    """

    def __init__(self, steps: Sequence[Step], some: set[int]) -> None:
        super().__init__()
        self.steps, self.some = steps, some
        self.linear = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norm = nn.ModuleList([nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH, affine=False)])

    def forward(self, x: Tensor) -> Tensor:
        results = [x, self.linear[0](x)]
        for kind, layer, taken in self.steps:
            values = [results[number] for number in taken]
            match kind:
                case "linear":
                    made = self.linear[layer](values[0])
                case "norm":
                    made = self.norm[layer](values[0])
                case "add":
                    made = sum(values[1:], values[0])
                case "gate":
                    made = values[0] * values[1].mean(1, keepdim=True).sigmoid()
                case "times":
                    made = values[0].tanh() * values[1].sigmoid()
                case _:
                    made = values[0].tanh()
            results.append(made)
        total = x.new_zeros((), dtype=torch.float64)
        for number, result in enumerate(results):
            for rows, first in zip(result.split(ROWS), x.split(ROWS), strict=True):
                if number not in self.some or first[0, 0] > 0:
                    total = total + rows.double().tanh().square().sum()
        return total


class GraphTask:
    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        return LossSum(model(batch), torch.tensor(float(len(batch))))


def rows(leaf: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(leaf).normal(leaf / 2, 1 + leaf, (ROWS, WIDTH)))


def graph(steps: Sequence[Step], some: set[int], dtype: torch.dtype) -> nn.Module:
    with GENERATORS:  # ranks are threads
        torch.manual_seed(3)
        return Graph(steps, some).to(dtype).train()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}


def bits(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in tensors.items()}


@pytest.mark.slow
@settings(settings.get_profile("files"))
@given(
    steps=graphs(),
    some=st.sets(st.integers(1, 9), max_size=3),
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
)
def test_any_graph_has_one_order_and_the_gradient_of_one_big_batch(
    steps: list[Step], some: set[int], precision: str
) -> None:
    def work(
        world: World, precision: str = precision, dtype: torch.dtype = torch.float32
    ) -> dict[str, Tensor]:
        model = graph(steps, some, dtype)
        statistics = RunningStatistics(batch_norms(model), CPU)
        task: Any = GraphTask()
        passes = make_accumulator(task, model, statistics, recipe(LEAVES, precision=precision), world)
        statistics.begin()
        drawn = (rows(leaf).to(dtype) for leaf in world.own_micro_batches(LEAVES))
        statistics.end(passes.run(0, drawn, lambda loss: loss, Flags()).statistics)
        return {**gradients(model), **dict(model.named_buffers())}

    expected = bits(together(LEAVES, work)[0])  # each micro-batch has a rank
    assert bits(work(ALONE)) == expected
    for found in together(3, work):
        assert bits(found) == expected
    wide = work(ALONE, "fp32", torch.float64)
    whole = graph(steps, some, torch.float64)
    whole(torch.cat([rows(leaf) for leaf in range(LEAVES)])).backward()
    for name, gradient in gradients(whole).items():
        limit = 1e-6 * max(float(gradient.abs().max()), 1)
        torch.testing.assert_close(wide[name], gradient, rtol=0, atol=limit)


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
def test_norms_without_running_statistics_see_the_global_batch(mode: bool) -> None:
    """PyTorch normalizes by the batch there in evaluation mode, too."""
    torch.manual_seed(3)
    norm = nn.BatchNorm1d(WIDTH, track_running_stats=False).train(mode)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), norm, nn.Linear(WIDTH, 1)).double()
    batch = [rows(leaf) for leaf in range(LEAVES)]
    model(torch.cat(batch)).square().sum().backward()
    expected = {name: gradient.clone() for name, gradient in gradients(model).items()}
    model.zero_grad()

    class Squares:
        def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
            return LossSum(model(batch).square().sum(), torch.tensor(1.0))

    task: Any = Squares()
    passes = make_accumulator(
        task, model, RunningStatistics([], CPU), recipe(LEAVES, precision="fp32"), ALONE
    )
    passes.run(0, iter(batch), lambda loss: loss, Flags())
    torch.testing.assert_close(gradients(model), expected, rtol=1e-10, atol=1e-10)


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002 - the global one


def expected_of(leaf: int) -> list[float]:
    """What new generators draw after the documented keys, each by its own library."""
    path = (5, "dropout", 7, leaf)
    words = np.frombuffer(key(*path, "numpy").to_bytes(16, "little"), "<u4")
    torchs = torch.Generator().manual_seed(torch_seed(*path))
    return [
        random.Random(key(*path, "python")).random(),
        float(np.random.RandomState(words.astype(np.uint32)).rand()),
        float(torch.rand((), generator=torchs)),
    ]


class Drawing:
    """A loss that draws from one or all of the global generators."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.seen = draw, []

    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        self.seen.append(self.draw())
        return LossSum(model(batch).sum(), torch.tensor(1.0))


def run_drawing(world: World, draw: Any, norms: str) -> list[Any]:
    task: Any = Drawing(draw)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).double()
    statistics = RunningStatistics(batch_norms(model), CPU)
    wanted = recipe(LEAVES, precision="fp32", batch_norm=norms, seed=5)
    passes = make_accumulator(task, model, statistics, wanted, world)
    passes.run(7, (rows(leaf) for leaf in world.own_micro_batches(LEAVES)), lambda loss: loss, Flags())
    return list(task.seen)


def test_the_global_generators_of_python_numpy_and_torch_are_seeded_for_each_micro_batch() -> None:
    with join() as world:
        assert run_drawing(world, drawn, "micro") == [expected_of(leaf) for leaf in range(LEAVES)]


@pytest.mark.parametrize(
    ("draw", "name"),
    [(random.random, "Python"), (lambda: np.random.rand(), "NumPy")],  # noqa: NPY002
)
def test_micro_batches_that_run_side_by_side_cannot_use_them(draw: Any, name: str) -> None:
    with pytest.raises(UserError, match=f"'sync', but .* random generator of {name}, .* batch_norm: micro"):
        run_drawing(ALONE, draw, "sync")
    assert all(
        isinstance(error, UserError) for error in together(2, lambda world: run_drawing(world, draw, "sync"))
    )
    run_drawing(ALONE, lambda: torch.rand(()), "sync")
