"""Tensors that a forward pass changes: the same bits on any number of ranks, or an error with their names."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm

from rankless.engine.accumulate import make_accumulator
from rankless.engine.forward_state import ForwardState
from rankless.engine.running_statistics import RunningStatistics, batch_norms
from rankless.engine.totals import Flags
from rankless.errors import UserError
from rankless.files.reading import read_text
from rankless.models.weights_files.weights import digest
from rankless.recipe.schema import Recipe
from rankless.world.process_group import World, join
from support.small_task import Regression, train
from support.thread_ranks import CPU, together

WIDTH, LEAVES = 4, 6
ALONE = World(0, 1, CPU, 0)


def images(step: int, leaf: int) -> Tensor:
    made = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(100 * step + leaf))
    return made * (1 + leaf) + leaf


class Changing(nn.Module):
    """A network that changes ``value`` by ``change(self, images)`` in every forward pass in training mode."""

    def __init__(self, value: Any, change: Callable[[Any, Tensor], None], *, is_saved: bool = True) -> None:
        super().__init__()
        self.change, self.layer = change, nn.Linear(WIDTH, 1)
        if isinstance(value, nn.Module):
            self.value = value
        else:
            self.register_buffer("value", value, persistent=is_saved)

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.change(self, images)
        return self.layer(images)


def reassign(net: Any, images: Tensor) -> None:
    net.value = net.value * 0.9 + images.mean(0) * 0.1


def follow(net: Any, images: Tensor) -> None:
    for mine, theirs in zip(net.value.parameters(), net.layer.parameters(), strict=True):
        mine.data = mine.data * 0.9 + theirs.data * 0.1  # as in MoCo


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.script is deprecated
        return torch.jit.script(nn.Sequential(nn.Linear(WIDTH, 3), nn.BatchNorm1d(3)))


class FunctionalNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("var", torch.ones(WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        return F.batch_norm(images, self.mean, self.var, training=self.training)


class InstanceNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(5, track_running_stats=True)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(images[None])


KINDS: dict[str, Callable[[], nn.Module]] = {
    "spectral": lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, 3)),
    "spectral, old": lambda: spectral_norm(nn.Linear(WIDTH, 3)),
    "counter": lambda: Changing(torch.tensor(0), lambda net, images: net.value.add_(1)),
    "flag": lambda: Changing(torch.tensor(False), lambda net, images: net.value.fill_(True)),
    "mean": lambda: Changing(torch.zeros(WIDTH), lambda net, images: net.value.lerp_(images.mean(0), 0.1)),
    "complex": lambda: Changing(torch.zeros(1) * 1j, lambda net, images: net.value.add_(images[0, 0] * 1j)),
    "reassigned": lambda: Changing(torch.zeros(WIDTH), reassign),
    "teacher": lambda: Changing(nn.Linear(WIDTH, 1).requires_grad_(False), follow),
    "instance norm": InstanceNorm,
    "script": scripted,
    "F.batch_norm": FunctionalNorm,
    "in some": lambda: Changing(
        torch.zeros(WIDTH), lambda net, images: net.value.add_(images[0]) if images[0, 0] > 2 else None
    ),
    "cache": lambda: Changing(
        None, lambda net, images: setattr(net, "value", images.sum()), is_saved=False
    ),
}  # fmt: skip


def run(
    world: World, net: nn.Module, count: int = 3, micro_batches: int = LEAVES, known: Sequence[str] = ()
) -> ForwardState:
    """Forward passes of ``count`` steps, without gradients; ranks tell each other whether anything is new."""
    net.train()
    state = ForwardState(net, [], world, micro_batches)
    state.expect(known)
    for step in range(count):
        state.begin()
        new = 0
        for leaf in world.own_micro_batches(micro_batches):
            state.begin_micro_batch()
            net(images(step, leaf))
            new += len(state.keep(leaf))
        state.end(is_applied=True, has_new=any(world.all_gather(new)))
    return state


def after(world: World, kind: str) -> tuple[str, list[str], str]:
    net = build(kind)
    state = run(world, net)
    return digest(net.state_dict()), state.changing, state.sentence()


def build(kind: str) -> nn.Module:
    torch.manual_seed(1)
    return KINDS[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_ranks_leaves_the_same_bits(kind: str) -> None:
    expected = after(ALONE, kind)
    assert expected[1] and all(f"'{name}'" in expected[2] for name in expected[1])
    for size in (2, 3, 4):
        nets = [build(kind) for _ in range(size)]  # not in the threads, which share the generator

        def work(world: World, nets: list[nn.Module] = nets) -> tuple[str, list[str], str]:
            state = run(world, nets[world.rank])
            return digest(nets[world.rank].state_dict()), state.changing, state.sentence()

        assert together(size, work) == [expected] * size


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("cache", "in some")])
def test_one_micro_batch_is_plain_pytorch(kind: str) -> None:
    net, plain = build(kind), build(kind).train()
    run(ALONE, net, micro_batches=1)
    for step in range(3):
        plain(images(step, 0))
    assert digest(net.state_dict()) == digest(plain.state_dict())


@pytest.mark.parametrize("kind", ["spectral", "spectral, old", "counter", "flag", "teacher"])
def test_what_does_not_depend_on_the_images_happens_once_per_step(kind: str) -> None:
    net, plain = build(kind), build(kind).train()
    run(ALONE, net)
    for _ in range(3):
        plain(images(0, 0))
    assert digest(net.state_dict()) == digest(plain.state_dict())


def test_what_depends_on_them_becomes_the_mean_over_the_micro_batches() -> None:
    nets = {kind: build(kind) for kind in ("mean", "script", "in some")}
    for net in nets.values():
        run(ALONE, net, count=1)
    batches = [images(0, leaf) for leaf in range(LEAVES)]
    means = torch.stack([batch.mean(0) for batch in batches]).double()
    torch.testing.assert_close(nets["mean"].value.double(), 0.1 * means.mean(0))
    linear = build("script")[0]
    outputs = [linear(batch).detach().double() for batch in batches]
    variances = torch.stack([output.var(0) for output in outputs]).mean(0)
    torch.testing.assert_close(nets["script"].state_dict()["1.running_var"].double(), 0.9 + 0.1 * variances)
    some = sum((batch[0] for batch in batches if batch[0, 0] > 2), torch.zeros(WIDTH)) / LEAVES
    torch.testing.assert_close(nets["in some"].value, some)


def test_a_skipped_step_and_a_step_that_is_undone_leave_no_trace() -> None:
    net = build("F.batch_norm").train()
    state = ForwardState(net, [], ALONE, 1)
    before = digest(net.state_dict())
    for finish in (state.undo, lambda: state.end(is_applied=False, has_new=True)):
        state.begin()
        state.begin_micro_batch()
        net(images(0, 0))
        assert state.keep(0) == ["mean", "var"]
        finish()
        assert digest(net.state_dict()) == before


calls = itertools.count()


def later(net: Any, images: Tensor) -> None:
    if next(calls) == LEAVES:
        net.value.weight.mul_(0.5)


def frozen() -> nn.Module:
    return nn.Linear(1, 1).requires_grad_(False)


def to_images(net: Any, images: Tensor) -> None:
    net.value = images


BAD: dict[str, tuple[Any, Callable[[Any, Tensor], Any], str]] = {
    "integers": (torch.tensor(0), lambda net, x: net.value.add_(int(x[0, 0])), "mean is not an integer"),
    "another shape": (torch.zeros(0), to_images, r"'value' from float32 \(0,\) to float32 \(5, 4\)"),
    "nothing before": (None, to_images, r"'value' from None to float32 \(5, 4\)"),
    "a trained weight": (None, lambda net, x: net.layer.weight.mul_(0.5), "parameter 'layer.weight'"),
    "its data": (None, lambda net, x: net.layer.weight.data.mul_(0.5), "parameter 'layer.weight'"),
    "a frozen weight, later": (frozen(), later, "'value.weight' for the first time after the first step"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_handled_is_refused_by_name(kind: str) -> None:
    value, change, text = BAD[kind]
    with pytest.raises(UserError, match=text):
        run(ALONE, Changing(value, change))


def test_a_buffer_may_change_later_and_a_backward_pass_may_not_change_it() -> None:
    def work(world: World) -> list[float]:
        seen = itertools.count()
        own = len(world.own_micro_batches(LEAVES))

        def change(net: Any, images: Tensor) -> None:
            if next(seen) >= 2 * own:  # from the third step on
                net.value.add_(1)

        net = Changing(torch.zeros(1), change)
        run(world, net, count=4)
        return net.value.tolist()

    assert work(ALONE) == [2.0] and together(4, work) == [[2.0]] * 4
    net = Changing(torch.zeros(1), lambda net, images: None).train()
    net.layer.weight.register_hook(lambda gradient: net.value.add_(1) and None)
    state = ForwardState(net, [], ALONE, 1)
    state.begin()
    state.begin_micro_batch()
    output = net(images(0, 0))
    state.keep(0)
    output.sum().backward()
    with pytest.raises(UserError, match="the backward pass changes 'value'"):
        state.end(is_applied=True, has_new=False)


def test_a_change_that_no_step_can_see_is_found_at_the_next_check() -> None:
    net = Changing(torch.zeros(2), lambda net, images: None)
    state = run(ALONE, net)
    assert state.unnoticed_change(3) is None
    net.value.data.add_(1)
    assert "after step 3, 'value' had other values" in str(state.unnoticed_change(3))


def test_a_frozen_weight_that_has_changed_before_may_change_again_after_a_resume() -> None:
    net = Changing(frozen(), later)
    before, calls_so_far = net.value.weight.clone(), next(calls)
    net.change = lambda net, images: (
        net.value.weight.mul_(0.5) if next(calls) > calls_so_far + LEAVES else None
    )
    run(ALONE, net, count=2, known=["value.weight", "not there"])
    assert torch.equal(net.value.weight, before / 2)


class Task(Regression):
    def model(self) -> nn.Module:
        return nn.Sequential(Changing(torch.tensor(0), lambda net, images: net.value.add_(1)))


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"batch_norm": "sync"}, "batch_norm is 'sync', but the forward pass changes '0.value'"),
        ({"model": {"checkpointing": True}}, "checkpointing is true, but the forward pass changes '0.value'"),
    ],
)
def test_side_by_side_and_computed_again_it_is_refused(keys: Any, text: str) -> None:
    recipe = Recipe(batch={"images": 4, "micro": 2}, precision="fp32", **keys)
    task: Any = Task()
    net = nn.Sequential(*task.model(), nn.BatchNorm1d(1)).train()
    norms = batch_norms(net)
    with join() as world:
        statistics = RunningStatistics(norms, CPU, ForwardState(net, norms, world, 2))
        passes = make_accumulator(task, net, statistics, recipe, world)
        statistics.begin()
        with pytest.raises(UserError, match=text):
            passes.run(0, iter([images(0, 0), images(0, 1)]), lambda loss: loss, Flags())


def test_a_changing_buffer_is_reported_and_is_no_silent_error(tmp_path: Path) -> None:
    keys: Any = {"batch": {"images": 4, "micro": 2}, "check": {"recompute": 2}}
    recipe = Recipe(precision="fp32", epochs=1, workers=0, **keys)
    with join() as world:
        assert train(world, Task(), recipe, str(tmp_path / "run")) is True
    journal = read_text(tmp_path / "run" / "journal.jsonl", encoding="utf-8")
    assert "forward passes change '0.value'" in journal and "silent error" not in journal
    state = next((tmp_path / "run" / "checkpoints").glob("step-*/state.json"))
    assert json.loads(read_text(state, encoding="utf-8"))["changed by forward"] == ["0.value"]
