"""Parameters of all kinds: their gradients are those of one big batch, or one sentence names them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankless.engine.accumulate import make_accumulator
from rankless.engine.running_statistics import RunningStatistics, batch_norms
from rankless.engine.schedule import set_rate
from rankless.engine.state import TrainingState
from rankless.engine.totals import Flags
from rankless.errors import UserError
from rankless.models.layers import channels_last
from rankless.models.weights_files.weights import digest
from rankless.randomness import GENERATORS
from rankless.recipe.load import load
from rankless.recipe.schema import Batch, Ema, Optim, Recipe
from rankless.structures import LossSum
from rankless.tasks import open_task
from rankless.world.process_group import World
from support.small_task import Regression, steps
from support.thread_ranks import CPU, together

LEAVES, ROWS = 5, 3
ALONE = World(0, 1, CPU, 0)
RECIPE = Recipe(batch=Batch(images=LEAVES * ROWS, micro=ROWS), precision="fp32", optim=Optim(lr=0.01))


class Odd(nn.Module):
    """A parameter of each kind; a row's result depends on that row alone, but for the norm."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.norm: nn.Module = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.token, self.place = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
        self.deep, self.flat = nn.Conv3d(1, 2, 2), nn.Conv2d(1, 2, 1)
        self.turning = nn.Parameter(torch.randn(8, 3, dtype=torch.complex64))
        self.wide = nn.Parameter(torch.randn(8, dtype=torch.float64))
        self.narrow = nn.Parameter(torch.randn(8, dtype=torch.bfloat16))
        self.nothing, self.factor = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.tensor(0.5))
        self.turned = nn.Parameter(torch.randn(3, 8).t())
        self.every_second = nn.Parameter(torch.randn(8, 6)[:, ::2])
        self.held = nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = (self.norm(x) * self.factor + (self.token[None] + self.place[None])) * self.held
        y = self.deep(x.view(-1, 1, 2, 2, 2)).flatten(1) + self.flat(x.view(-1, 1, 8, 1)).flatten(1)[:, :2]
        y = y.tanh().sum(1) + (x @ self.turned * (x @ self.every_second)).sum(1) + self.nothing.sum()
        y = y + (x.to(torch.complex64) @ self.turning).abs().sum(1)
        return y + (x * self.wide).sum(1).tanh() + (x.bfloat16() * self.narrow).sum(1).float()


class Task(Regression):
    def __init__(self, norm: bool = False) -> None:
        self.norm = norm

    def model(self) -> nn.Module:
        return Odd(self.norm)


def odd(norm: bool) -> nn.Module:
    with GENERATORS:  # ranks are threads
        torch.manual_seed(3)
        return channels_last(Odd(norm)).train()


def rows(step: int, leaf: int) -> Tensor:
    return torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(10 * step + leaf))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def summed(task: Any, model: nn.Module, recipe: Recipe, world: World, batch: Any = rows) -> dict[str, Tensor]:
    statistics = RunningStatistics(batch_norms(model), CPU)
    sums = make_accumulator(task, model, statistics, recipe, world)
    for step in range(2):  # the buckets are laid out again after the first
        statistics.begin()
        drawn = (batch(step, leaf) for leaf in world.own_micro_batches(recipe.batch.micro_batches))
        sums.run(step, drawn, lambda loss: loss, Flags())
    return gradients(model)


@pytest.mark.parametrize("norm", [False, True], ids=["micro", "sync"])
def test_each_kind_has_the_gradient_of_one_big_batch_on_any_number_of_ranks(norm: bool) -> None:
    recipe = replace(RECIPE, batch_norm="sync" if norm else "micro")
    plain = odd(norm)
    Task().loss(plain, torch.cat([rows(1, leaf) for leaf in range(LEAVES)])).sum.backward()
    expected = gradients(plain)
    alone = summed(Task(), odd(norm), recipe, ALONE)
    assert alone.keys() == expected.keys() == {n for n, _ in plain.named_parameters()} - {"held"}
    for name, gradient in expected.items():
        rtol = 0.1 if name == "narrow" else 1e-4
        torch.testing.assert_close(alone[name], gradient, rtol=rtol, atol=rtol)
    for size in (2, 3):
        for found in together(size, lambda world: summed(Task(), odd(norm), recipe, world)):
            assert digest(found) == digest(alone)


@pytest.mark.parametrize(("optim", "cpu_isa"), [("sgd", "avx2"), ("adamw", "native"), ("muon", "native")])
def test_each_kind_is_trained(optim: str, cpu_isa: str) -> None:
    settings: dict[str, Any] = {"optim": Optim(name=optim, lr=0.01, clip=1.0), "cpu_isa": cpu_isa}
    recipe = replace(RECIPE, **settings, ema=Ema(decay=0.9))

    def work(world: World) -> tuple[set[str], str]:
        state = TrainingState(Task(), recipe, world, 100)
        set_rate(state.optimizer, 0.01)
        before = {name: p.detach().clone() for name, p in state.model.named_parameters()}
        for numbers in steps(state, 2, rows):
            assert 0 < numbers.gradient_norm < float("inf")
        after = dict(state.model.named_parameters())
        state.check(2)
        return {n for n, p in after.items() if not p.equal(before[n])}, digest(state.weights())

    changed, expected = work(ALONE)
    assert changed == {name for name, _ in odd(False).named_parameters()} - {"held", "nothing"}
    assert together(2, work) == [(changed, expected)] * 2


def test_gradients_of_our_own_networks_are_those_of_plain_passes() -> None:
    small = ["data.root=digits", "data.train_images=8", "data.val_images=4", "model.image_size=64"]
    recipe = load(
        "yolov4-tiny", [*small, "model.width=0.25", "batch.images=4", "batch.micro=2", "precision=fp32"]
    )
    task = open_task(recipe)
    data = task.training_data()
    batches = [task.collate([data.item(index, 0) for index in pair]) for pair in ((0, 1), (2, 3))]
    torch.manual_seed(3)
    model = channels_last(task.model()).train()
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for batch in batches:
        loss = task.loss(model, batch).sum
        found = torch.autograd.grad(loss, list(model.parameters()))
        for total, one in zip(expected.values(), found, strict=True):
            total.add_(one)
    summed_up = summed(task, model, recipe, ALONE, lambda _, leaf: batches[leaf])
    for name, gradient in expected.items():
        torch.testing.assert_close(summed_up[name], gradient, rtol=1e-5, atol=1e-6)


class Scaled(nn.Module):
    """The sum of w x; its gradient is x, whatever w is."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.other = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w).sum(1) + self.other


class Linear(Regression):
    """The sum of the results, of a model that ``change`` has changed."""

    def __init__(self, change: Any = None) -> None:
        self.change, self.calls = change, 0
        self.own = nn.Linear(8, 1)

    def model(self) -> nn.Module:
        model = Scaled()
        return (self.change and self.change(model)) or model

    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        self.calls += 1
        return LossSum(model(batch).sum(), torch.tensor(1.0))


def clamp(p: Tensor) -> None:
    p.grad.clamp_(-1, 2)


def test_hooks_see_the_gradient_of_one_micro_batch_on_any_number_of_ranks() -> None:
    def clamped(world: World) -> dict[str, Tensor]:
        task = Linear()
        model = task.model()
        model.w.register_hook(lambda gradient: gradient * 3)
        model.w.register_post_accumulate_grad_hook(clamp)
        return summed(task, model, RECIPE, world)

    expected = sum((3 * rows(1, leaf).sum(0)).clamp(-1, 2) for leaf in range(LEAVES))
    for size in (1, 2, 5):
        for found in together(size, clamped):
            torch.testing.assert_close(found["w"], expected)
            assert found["other"] == LEAVES * ROWS


class Nested(torch.autograd.Function):
    """A second use of ``w`` in a backward pass of its own, as in reentrant checkpointing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.w = w
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        with torch.enable_grad():
            (2 * ctx.w).sum().backward()
        return gradient, None


class Wrong(Linear):
    """A loss that does what it must not do in its second call."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self.act = act

    def loss(self, model: Any, batch: Tensor) -> LossSum:
        loss = super().loss(model, batch)
        return LossSum(self.act(self, model, batch, loss.sum), loss.count)


def sparse(model: Any) -> nn.Module:
    model.w = nn.Embedding(8, 1, sparse=True).weight
    model.forward = lambda x: (
        nn.functional.embedding(x[:, :1].long() % 8, model.w, sparse=True).sum() + model.other
    )
    return model


ODD_TASKS = {
    "the gradient of the parameter 'w' is sparse": lambda: Linear(sparse),
    "whose parameter '1.weight' is lazy": lambda: Linear(lambda m: nn.Sequential(m, nn.LazyLinear(2))),
    "whose parameter 'w' has several elements at one place": lambda: Linear(
        lambda m: setattr(m, "w", nn.Parameter(torch.ones(1).expand(8)))
    ),
    "requires_grad of the parameter 'w' became False": lambda: Wrong(
        lambda t, m, x, s: (t.calls == 2 and m.w.requires_grad_(False), s)[1]
    ),
    "a hook removed the gradient of the parameter 'w'": lambda: Linear(
        lambda m: m.w.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None)) and None
    ),
    "outside of the model that it receives ('own.bias', 'own.weight')": lambda: Wrong(
        lambda t, m, x, s: s + t.own(x).sum()
    ),
    "'w' already has a gradient before the backward pass": lambda: Wrong(
        lambda t, m, x, s: (m(x).sum().backward(), s)[1]
    ),
    "'w' received a gradient twice in one backward pass": lambda: Wrong(
        lambda t, m, x, s: Nested.apply(m(x), m.w).sum()
    ),
}


@pytest.mark.parametrize("text", ODD_TASKS)
def test_what_cannot_be_trained_is_named(text: str) -> None:
    task: Any = ODD_TASKS[text]()
    with pytest.raises(UserError) as caught:
        state = TrainingState(task, RECIPE, ALONE, 100)
        list(steps(state, 1, rows))
    assert text in str(caught.value)


def test_a_parameter_that_is_released_during_the_run_is_named() -> None:
    held = Linear(lambda m: m.w.requires_grad_(False) is None)
    state = TrainingState(held, RECIPE, ALONE, 100)
    list(steps(state, 1, rows))
    state.model.w.requires_grad_(True)
    with pytest.raises(UserError, match="requires_grad of the parameter 'w' became True during the run"):
        list(steps(state, 1, rows))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"precision": "fp16"}, "'turning' is complex"),
        ({"cpu_isa": "avx2"}, "use optim.name=sgd or cpu_isa"),
    ],
)
def test_complex_parameters_that_pytorch_cannot_update_are_named(changes: dict[str, Any], text: str) -> None:
    recipe = replace(RECIPE, optim=Optim(name="adamw"), **changes)
    with pytest.raises(UserError, match=text):
        TrainingState(Task(), recipe, ALONE, 100)
