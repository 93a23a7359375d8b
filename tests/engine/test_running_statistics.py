"""Running statistics: the mean over a step's micro-batches, let in once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rankless.engine.running_statistics import RunningStatistics, batch_norms
from rankless.errors import UserError

CPU = torch.device("cpu")


def some_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 1),
        nn.BatchNorm2d(3, momentum=0.03),
        nn.BatchNorm2d(3, track_running_stats=False),
        nn.Flatten(),
        nn.BatchNorm1d(12, momentum=0.4),
    ).double()


def some_batches(count: int) -> list[Tensor]:
    return [torch.randn(5, 2, 2, 2, dtype=torch.float64) * (n + 1) + n for n in range(count)]


def a_step(net: nn.Module, statistics: RunningStatistics, batches: list[Tensor]) -> None:
    statistics.begin()
    total = torch.zeros_like(statistics.leaf())
    for batch in batches:
        statistics.begin_micro_batch()
        net(batch)
        total += statistics.leaf()
    statistics.end(total)


def test_the_mean_over_the_micro_batches_enters_once() -> None:
    net = some_net()
    seen: list[Tensor] = []
    net[1].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    statistics = RunningStatistics(batch_norms(net), CPU)
    mean, variance = torch.zeros(3).double(), torch.ones(3).double()
    for step in range(3):
        seen.clear()
        a_step(net, statistics, some_batches(4))
        means = torch.stack([x.mean((0, 2, 3)) for x in seen]).mean(0)
        variances = torch.stack([x.transpose(0, 1).flatten(1).var(1, correction=1) for x in seen]).mean(0)
        mean = 0.97 * mean + 0.03 * means
        variance = 0.97 * variance + 0.03 * variances
        torch.testing.assert_close(net[1].running_mean, mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(net[1].running_var, variance, rtol=1e-12, atol=1e-12)
        assert net[1].num_batches_tracked == net[4].num_batches_tracked == step + 1


def test_one_micro_batch_is_torchs_batch_norm() -> None:
    net = some_net()
    plain = copy.deepcopy(net)
    statistics = RunningStatistics(batch_norms(net), CPU)
    for _ in range(3):
        batches = some_batches(1)
        a_step(net, statistics, batches)
        plain(batches[0])
    assert list(net.state_dict()) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value, rtol=1e-12, atol=1e-12)


def test_a_skipped_step_leaves_no_trace_in_them() -> None:
    net = some_net()
    statistics = RunningStatistics(batch_norms(net), CPU)
    a_step(net, statistics, some_batches(2))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    statistics.begin()
    net(torch.full((5, 2, 2, 2), torch.nan, dtype=torch.float64))
    statistics.end(None)
    after = net.state_dict()
    assert all(torch.equal(after[n], v) for n, v in before.items() if not n.endswith("tracked"))


def test_loading_and_copying_go_through_the_one_vector() -> None:
    net = some_net()
    statistics = RunningStatistics(batch_norms(net), CPU)
    a_step(net, statistics, some_batches(2))
    other = some_net()
    others = RunningStatistics(batch_norms(other), CPU)
    other.load_state_dict(net.state_dict())
    assert torch.equal(statistics.vector, others.vector)
    assert torch.equal(statistics.counts, others.counts)
    copied = copy.deepcopy(net)
    copied[1].running_mean.zero_()
    assert net[1].running_mean.abs().sum() > 0


def test_norms_without_running_statistics_and_nets_without_norms() -> None:
    assert [type(m) for m in batch_norms(some_net())] == [nn.BatchNorm2d, nn.BatchNorm1d]
    statistics = RunningStatistics([], CPU)
    statistics.begin()
    assert statistics.leaf().numel() == 0
    statistics.end(torch.empty(0))


def test_a_cumulative_mean_is_refused() -> None:
    with pytest.raises(UserError, match=r"momentum None.*expected a number"):
        RunningStatistics([nn.BatchNorm2d(2, momentum=None)], CPU)


class Shared(nn.Module):
    """One norm on two levels, another that only some micro-batches call; maybe computed again later."""

    def __init__(self, again: str) -> None:
        super().__init__()
        self.again = again
        self.head = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=0.2))
        self.rare = nn.BatchNorm1d(3, momentum=0.3)

    def forward(self, x: Tensor, rarely: bool) -> Tensor:
        seen = [self._head(x), self._head(2 * x - 5)]
        return torch.stack([*seen, *([self.rare(x)] if rarely else [])]).pow(3).sum()

    def _head(self, x: Tensor) -> Tensor:
        if not self.again:
            return self.head(x)  # type: ignore[no-any-return]
        return checkpoint(self.head, x.requires_grad_(), use_reentrant=self.again == "reentrant")  # type: ignore[no-any-return]


def levels(micro: int) -> Tensor:
    torch.manual_seed(micro)
    return torch.randn(6, 3, dtype=torch.float64) * (micro + 1) + micro


MICRO, RARELY = 4, (1, 3)


def by_ranks(size: int, again: str) -> dict[str, Tensor]:
    """The statistics after two steps whose micro-batches are dealt to so many ranks."""
    nets, vectors = [], []
    for _ in range(size):
        torch.manual_seed(0)
        nets.append(Shared(again).double())
        vectors.append(RunningStatistics(batch_norms(nets[-1]), CPU))
    for _ in range(2):
        total = torch.zeros(2 * 2 * 3 + 2, dtype=torch.float64)
        for statistics in vectors:
            statistics.begin()
        for rank, (net, statistics) in enumerate(zip(nets, vectors, strict=True)):
            for micro in range(rank * MICRO // size, (rank + 1) * MICRO // size):
                statistics.begin_micro_batch()
                loss = net(levels(micro), micro in RARELY)
                total += statistics.leaf()
                loss.backward()
        for statistics in vectors:
            statistics.end(total)
    assert all(torch.equal(v.vector, vectors[0].vector) for v in vectors)
    return dict(nets[0].named_buffers())


@pytest.mark.parametrize("again", ["", "checkpoint", "reentrant"])
def test_several_calls_count_as_their_mean_and_none_as_none(again: str) -> None:
    torch.manual_seed(0)
    net = Shared("").double()
    head = [torch.zeros(3).double(), torch.ones(3).double()]
    rare = [torch.zeros(3).double(), torch.ones(3).double()]
    for _ in range(2):
        heads, rares = [], []
        for micro in range(MICRO):
            x = levels(micro)
            seen = [net.head[0](y) for y in (x, 2 * x - 5)]
            heads.append(
                [
                    torch.stack([y.mean(0) for y in seen]).mean(0),
                    torch.stack([y.var(0) for y in seen]).mean(0),
                ]
            )
            if micro in RARELY:
                rares.append([x.mean(0), x.var(0)])
        for kept, found, momentum in ((head, heads, 0.2), (rare, rares, 0.3)):
            for place in range(2):
                mean = torch.stack([each[place] for each in found]).mean(0)
                kept[place] = (1 - momentum) * kept[place] + momentum * mean
    for size in (1, 2, 4):
        buffers = by_ranks(size, again)
        for name, kept in (("head.1", head), ("rare", rare)):
            torch.testing.assert_close(buffers[f"{name}.running_mean"], kept[0], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(buffers[f"{name}.running_var"], kept[1], rtol=1e-12, atol=1e-12)
            assert buffers[f"{name}.num_batches_tracked"] == 2


def test_a_norm_that_no_micro_batch_calls_stays_as_it_is() -> None:
    net = Shared("").double()
    statistics = RunningStatistics(batch_norms(net), CPU)
    for _ in range(2):
        statistics.begin()
        statistics.begin_micro_batch()
        net(levels(0), False)
        statistics.end(statistics.leaf())
    assert net.rare.running_mean.eq(0).all() and net.rare.running_var.eq(1).all()
    assert net.rare.num_batches_tracked == 0 and net.head[1].num_batches_tracked == 2


def test_given_back_norms_are_torchs_again() -> None:
    net = some_net()
    statistics = RunningStatistics(batch_norms(net), CPU)
    a_step(net, statistics, some_batches(2))
    statistics.give_back()
    before = net[1].running_mean.clone()
    net(some_batches(1)[0])
    assert net[1].momentum == 0.03 and not torch.equal(net[1].running_mean, before)
    assert not net[1]._forward_pre_hooks
