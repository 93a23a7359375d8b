"""Batch norm over the global batch: M micro-batches on W ranks are one big batch on one."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rankless.engine.accumulate import AllAtOnce, make_accumulator
from rankless.engine.running_statistics import RunningStatistics, batch_norms
from rankless.engine.totals import Flags
from rankless.errors import UserError
from rankless.randomness import GENERATORS, torch_seed
from rankless.recipe.schema import Batch, Recipe
from rankless.structures import LossSum
from rankless.world.exchange import Exchange
from rankless.world.process_group import LostPeerError, World
from rankless.world.sync_norm import SideBySide
from support.thread_ranks import CPU, together

LEAVES, PER_MICRO, STEPS, SEED = 6, 2, 2, 11
SHARE = 0.25


class Net(nn.Module):
    """A trunk and two heads; norms in all three, dropout before and after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.trunk_norm = nn.BatchNorm2d(4, momentum=0.1)
        self.before = nn.Dropout(SHARE)
        self.deep = nn.Conv2d(4, 6, 3, bias=False)
        self.deep_norm = nn.BatchNorm2d(6, momentum=0.3, eps=1e-3)
        self.after = nn.Dropout(SHARE)
        self.head = nn.Conv2d(6, 2, 1)
        self.other = nn.Conv2d(4, 3, 1)
        self.other_norm = nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk_norm(self.stem(images)).relu()
        deep = self.after(self.deep_norm(self.deep(self.before(x))).relu())
        return self.head(deep), self.other_norm(self.other(x))


class SquaresTask:
    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        one, two = model(batch)
        parts = {"one": one.detach().square().sum(), "two": two.detach().pow(3).sum()}
        return LossSum(one.square().sum() + two.pow(3).sum(), torch.tensor(float(len(batch))), parts)


def net(share: float) -> Net:
    torch.manual_seed(5)
    model = Net().double()
    for norm in batch_norms(model):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.5, 0.5)
    model.before.p = model.after.p = share
    return model.train()


def images(step: int, leaf: int) -> Tensor:
    rng = np.random.default_rng([step, leaf])
    return torch.from_numpy(rng.normal(leaf / 3, 1 + leaf, (PER_MICRO, 3, 6, 5)))


RECIPE = Recipe(batch=Batch(LEAVES * PER_MICRO, PER_MICRO), seed=SEED, precision="fp32", batch_norm="sync")


def trained(world: World) -> list[tuple[float, dict[str, float], dict[str, np.ndarray]]]:
    """Per step the loss, its parts, and gradients and buffers by name."""
    model = net(SHARE).to(memory_format=torch.channels_last)
    statistics = RunningStatistics(batch_norms(model), world.device)
    passes = make_accumulator(SquaresTask(), model, statistics, RECIPE, world)  # type: ignore[arg-type]
    assert isinstance(passes, AllAtOnce)
    found = []
    for step in range(STEPS):
        statistics.begin()
        drawn = (images(step, leaf) for leaf in world.own_micro_batches(LEAVES))
        totals = passes.run(step, drawn, lambda loss: loss, Flags(stop=world.rank == 1))
        statistics.end(totals.statistics)
        numbers = totals.read(torch.zeros(()))
        assert numbers.count == LEAVES * PER_MICRO and numbers.stop == min(world.size - 1, 1)
        tensors = {f"grad of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
        tensors |= dict(model.named_buffers())
        plain = {name: value.contiguous().numpy().copy() for name, value in tensors.items()}
        found.append((numbers.loss, numbers.parts, plain))
        model.zero_grad(set_to_none=True)
    return found


class ChunkDropout(nn.Module):
    """Dropout of one big batch with the masks that its micro-batches would draw, each from its own stream."""

    def __init__(self, streams: list[Tensor]) -> None:
        super().__init__()
        self.streams = streams

    def forward(self, x: Tensor) -> Tensor:
        masks = []
        for number, chunk in enumerate(x.split(PER_MICRO)):
            torch.set_rng_state(self.streams[number])
            # in the order of the dimensions as the chunk lies in memory
            masks.append(F.dropout(torch.ones_like(chunk), SHARE))
            self.streams[number] = torch.get_rng_state()
        return x * torch.cat(masks)


def one_big_batch() -> list[tuple[float, dict[str, np.ndarray]]]:
    model = net(0.0).to(memory_format=torch.channels_last)
    found = []
    for step in range(STEPS):
        streams = []
        for leaf in range(LEAVES):
            torch.manual_seed(torch_seed(SEED, "dropout", step, leaf))
            streams.append(torch.get_rng_state())
        model.before, model.after = ChunkDropout(streams), ChunkDropout(streams)  # type: ignore[assignment]
        batch = torch.cat([images(step, leaf) for leaf in range(LEAVES)])
        model.zero_grad()
        loss = SquaresTask().loss(model, batch).sum
        loss.backward()
        tensors = {f"grad of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
        tensors |= dict(model.named_buffers())
        found.append((loss.item(), {n: value.contiguous().numpy().copy() for n, value in tensors.items()}))
    return found


@pytest.mark.processes
@pytest.mark.parametrize("size", [1, 2, 3])
def test_it_is_one_big_batch(ranks: Any, size: int) -> None:
    expected = one_big_batch()
    for answer in ranks(size, trained):
        for (loss, parts, tensors), (wanted_loss, wanted) in zip(answer, expected, strict=True):
            assert loss == pytest.approx(wanted_loss, rel=1e-12)
            assert parts["one"] + parts["two"] == pytest.approx(loss, rel=1e-12)
            assert tensors.keys() == wanted.keys()
            for name, value in wanted.items():
                largest = np.abs(value).max()
                # The gradient of a bias before a norm is zero but for rounding.
                limit = 1e-12 * max(largest, abs(wanted_loss) if name.startswith("grad") else 1)
                np.testing.assert_allclose(tensors[name], value, rtol=0, atol=limit, err_msg=name)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise UserError("a gradient that nobody knows")


def refuses(values: Tensor) -> Tensor:
    raise UserError("an image without a label")


@pytest.mark.parametrize("fails", [refuses, Fails.apply])
@pytest.mark.parametrize("place", ["before the norm", "after it"])
@pytest.mark.parametrize("failing", range(4))
def test_an_error_in_one_micro_batch_ends_all(fails: Any, place: str, failing: int) -> None:
    def run(world: World) -> None:
        side = SideBySide(
            nn.Sequential(nn.BatchNorm1d(2)), Exchange(4, world.rank, world.size, world.transport)
        )
        own = world.own_micro_batches(4)

        def forward(number: int) -> Tensor:
            values = torch.randn(3, 2, requires_grad=True)
            wrong = own[number] == failing
            out = side.replicas[number](fails(values) if wrong and place == "before the norm" else values)
            return (fails(out) if wrong and place == "after it" else out).sum()

        side.run(forward)

    for size in (1, 2):
        found = together(size, run)
        error = found.pop(failing * size // 4)
        assert isinstance(error, UserError)
        assert error.problems in [("an image without a label",), ("a gradient that nobody knows",)]
        waited = fails is refuses or place == "after it"  # the other rank, for this one
        assert all(isinstance(other, LostPeerError) == waited for other in found)


def test_micro_batches_compute_with_the_threads_of_who_runs_them() -> None:
    """Another thread's number, which new threads would take, changes nothing."""
    side = SideBySide(nn.Sequential(nn.BatchNorm1d(2)), Exchange(2, 0, 1))
    before, found = torch.get_num_threads(), []

    def forward(number: int) -> Tensor:
        found.append(torch.get_num_threads())
        out: Tensor = side.replicas[number](torch.randn(3, 2))
        return out.sum()

    torch.set_num_threads(3)
    other = threading.Thread(target=torch.set_num_threads, args=(2,))
    other.start()
    other.join()
    try:
        side.run(forward)
    finally:
        torch.set_num_threads(before)
    assert found == [3, 3]


def test_a_foreign_norm_is_refused() -> None:
    with pytest.raises(UserError, match=r"0 \(SyncBatchNorm\).*use batch_norm: micro"):
        SideBySide(nn.Sequential(nn.SyncBatchNorm(2)), Exchange(2, 0, 1))


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(2), nn.BatchNorm1d(2, affine=False)

    def forward(self, x: Tensor, way: str) -> Tensor:
        if way == "neither":
            return (x * self.first.weight).sum()
        if way == "other order":
            return self.first(self.second(x)).square().sum()  # type: ignore[no-any-return]
        if way == "thrice":
            return self.first(self.second(self.first(x))).square().sum()  # type: ignore[no-any-return]
        x = self.first(x)
        return (self.second(x) if way == "both" else x).square().sum()  # type: ignore[no-any-return]


def forward(side: SideBySide, ways: list[str], number: int) -> Tensor:
    out: Tensor = side.replicas[number](torch.randn(4, 2), ways[number])
    return out


def meet(world: World, ways: list[list[str]]) -> list[str]:
    """One run after another, each with a way through the model per micro-batch; what was refused."""
    leaves = len(ways[0])
    side = SideBySide(Skips(), Exchange(leaves, world.rank, world.size))
    own = world.own_micro_batches(leaves)
    try:
        for run in ways:
            side.run(functools.partial(forward, side, [run[leaf] for leaf in own]))
    except UserError as error:
        return list(error.problems)
    return []


EVERYWHERE = ["both"] * 3


@pytest.mark.processes
@pytest.mark.parametrize(
    ("ways", "said"),
    [
        ([["neither", "both", "both"]], "one has called its last norm, another calls 'first'"),
        ([["both", "neither", "both"]], "one calls 'first', another has called its last norm"),
        ([["both", "both", "neither"]], "one calls 'first', another has called its last norm"),
        ([["both", "both", "one"]], "one calls 'second', another has called its last norm"),
        ([["both", "other order", "both"]], "one calls 'first', another calls 'second'"),
        ([EVERYWHERE, ["one"] * 3], "one calls 'second', another has called its last norm"),
        ([EVERYWHERE, EVERYWHERE], ""),
        ([["neither"] * 3, ["neither"] * 3], ""),
    ],
)
def test_micro_batches_that_call_other_norms_are_reported(
    ranks: Any, ways: list[list[str]], said: str
) -> None:
    (found,) = ranks(1, meet, ways)
    assert [sentence.split("order: ")[1].split(";")[0] for sentence in found] == ([said] if said else [])


@pytest.mark.processes
@pytest.mark.parametrize("way", ["neither", "one", "other order", "thrice"])
def test_ranks_that_call_other_norms_in_the_first_run_are_reported_by_all(ranks: Any, way: str) -> None:
    """Where each rank's own micro-batches agree, only the other ranks can tell."""
    assert ranks(2, meet, [["both"] * 4] * 2) == [[], []]
    for size, ways in ((2, ["both", "both", way, way]), (3, ["both", "both", "both", way])):
        answers = ranks(size, meet, [ways])
        assert all(found == answers[0] for found in answers)
        assert "micro-batches call different batch norms, or call them in a different order" in answers[0][0]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("ways", "one", "other"),
    [
        (["both", "both", "both", "one"], "calls 'second'", "has called its last norm"),
        (["both", "both", "neither", "both"], "calls 'first'", "has called its last norm"),
        (["both", "both", "other order", "other order"], "calls 'first'", "calls 'second'"),
        (["one"] * 4, "calls 'second'", "has called its last norm"),
        (["other order", "both", "one", "one"], "calls 'first'", "calls 'second'"),
        (["both", "thrice", "both", "both"], "has called its last norm", "calls 'first'"),
    ],
)
def test_a_rank_that_calls_other_norms_later_on_is_reported_by_all(
    ranks: Any, ways: list[str], one: str, other: str
) -> None:
    """It alone could see it, and the others waited for it until it died."""
    for size in (2, 4) if "thrice" in ways else (3,):
        for found in ranks(size, meet, [["both"] * 4, ["both"] * 4, ways]):
            assert len(found) == 1 and f"one {one}, another {other};" in found[0]


class Twice(nn.Module):
    """One norm on two levels, as a head that is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, momentum=0.1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x).square().sum() + self.norm(3 * x + 10).pow(3).sum()
        return out


class TwiceTask:
    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        return LossSum(model(batch), torch.tensor(float(len(batch))))


def called_twice(world: World) -> list[np.ndarray]:
    model = Twice().double()
    statistics = RunningStatistics(batch_norms(model), world.device)
    passes = make_accumulator(TwiceTask(), model, statistics, RECIPE, world)  # type: ignore[arg-type]
    for step in range(STEPS):
        statistics.begin()
        drawn = (rows(step, leaf) for leaf in world.own_micro_batches(LEAVES))
        statistics.end(passes.run(step, drawn, lambda loss: loss, Flags()).statistics)
        model.zero_grad(set_to_none=True)
    return [b.numpy().copy() for b in model.buffers()]


def rows(step: int, leaf: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng([step, leaf]).normal(leaf, 1, (PER_MICRO, 3)))


@pytest.mark.processes
def test_a_norm_that_is_called_twice_keeps_the_mean(ranks: Any) -> None:
    mean, variance = np.zeros(3), np.ones(3)
    for step in range(STEPS):
        x = torch.cat([rows(step, leaf) for leaf in range(LEAVES)]).numpy()
        calls = (x, 3 * x + 10)
        mean = 0.9 * mean + 0.1 * np.mean([call.mean(0) for call in calls], 0)
        variance = 0.9 * variance + 0.1 * np.mean([call.var(0, ddof=1) for call in calls], 0)
    for size in (1, 2, 3):
        for found in ranks(size, called_twice):
            np.testing.assert_allclose(found[0], mean, rtol=1e-12)
            np.testing.assert_allclose(found[1], variance, rtol=1e-12)
            assert found[2] == STEPS


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.body, x.requires_grad_(), use_reentrant=self.reentrant)
        return out.pow(3).sum()


def recomputes(world: World, reentrant: bool) -> list[str]:
    model = Checkpointed(reentrant).double()
    statistics = RunningStatistics(batch_norms(model), world.device)
    passes = make_accumulator(TwiceTask(), model, statistics, RECIPE, world)  # type: ignore[arg-type]
    try:
        statistics.begin()
        drawn = (rows(0, leaf) for leaf in world.own_micro_batches(LEAVES))
        passes.run(0, drawn, lambda loss: loss, Flags())
    except UserError as error:
        return list(error.problems)
    return []


@pytest.mark.processes
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_is_refused(ranks: Any, reentrant: bool) -> None:
    for size in (1, 2):
        for said in ranks(size, recomputes, reentrant):
            when = "without gradients" if reentrant else "again in the backward pass"
            assert f"'body.1' is called {when}" in said[0]
            assert "model.checkpointing=true" in said[0]


class Hooked(nn.Module):
    """A hook of each kind. Without batch norm's effect, ``sync`` computes what ``micro`` does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.still, self.clamped = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)
        self.norm = nn.BatchNorm1d(3, affine=False)
        self.kept: list[Tensor] = []
        self.layer.register_forward_hook(self.keep)
        self.still.register_full_backward_hook(keep_gradient)
        self.still.weight.register_hook(lambda gradient: gradient * 0)
        self.clamped.weight.register_post_accumulate_grad_hook(clamp)
        self.clamped.bias.register_post_accumulate_grad_hook(self.to_sevens)
        self.clamped.bias.register_hook(lambda gradient: gradient).remove()

    def to_sevens(self, _: Tensor) -> None:
        assert self.clamped.bias.grad is not None
        self.clamped.bias.grad.fill_(7)

    def keep(self, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        self.kept = [output]
        return output * 2

    def forward(self, x: Tensor) -> Tensor:
        self.norm(self.layer(x))
        return self.clamped(self.still(self.kept[0] + x).tanh())


def clamp(parameter: Tensor) -> None:
    parameter.grad.clamp_(-0.1, 0.1)


def keep_gradient(layer: Any, inputs: Any, outputs: Any) -> None:
    layer.seen = outputs[0].detach().clone()


class HookedTask:
    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        return LossSum(model(batch).square().sum(), torch.tensor(float(len(batch))))


def hooked_gradients(world: World) -> dict[str, Tensor]:
    with GENERATORS:
        torch.manual_seed(3)
        model = Hooked().double().train()
    task: Any = HookedTask()
    passes = make_accumulator(task, model, RunningStatistics(batch_norms(model), CPU), RECIPE, world)
    passes.run(0, (rows(0, leaf) for leaf in world.own_micro_batches(LEAVES)), lambda loss: loss, Flags())
    assert all(p.grad is not None for p in model.parameters())
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_hooks_of_parameters_and_layers_see_each_micro_batch() -> None:
    expected: dict[str, Tensor] = {}
    for leaf in range(LEAVES):  # plain PyTorch, one micro-batch after the other
        torch.manual_seed(3)
        model = Hooked().double().train()
        model(rows(0, leaf)).square().sum().backward()
        for name, p in model.named_parameters():
            assert p.grad is not None
            expected[name] = expected.get(name, torch.zeros_like(p)) + p.grad
    assert not expected["still.weight"].any() and expected["clamped.bias"].item() == 7 * LEAVES
    alone = hooked_gradients(World(0, 1, CPU, 0))
    torch.testing.assert_close(alone, expected, rtol=1e-12, atol=1e-12)
    assert all(
        torch.equal(found[name], alone[name]) for found in together(3, hooked_gradients) for name in alone
    )


def test_hooks_with_variables_that_micro_batches_would_share_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    features: dict[str, Tensor] = {}
    model[0].register_forward_hook(lambda layer, inputs, output: features.update(x=output))
    with pytest.raises(UserError, match=r"hooks of layers use .* variables: '0' \(features\); .* micro"):
        SideBySide(model, Exchange(2, 0, 1))
