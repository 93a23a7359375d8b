"""Running statistics: the mean over a step's micro-batches, let in once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.training.statistics import RunningStatistics, batch_norms

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
    total = torch.zeros_like(statistics.vector)
    for batch in batches:
        net(batch)
        total += statistics.leaf()
    statistics.end(total, len(batches))


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
    statistics.end(None, 2)
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
    statistics.end(torch.empty(0), 3)


def test_a_cumulative_mean_is_refused() -> None:
    with pytest.raises(UserError, match=r"momentum None.*expected a number"):
        RunningStatistics([nn.BatchNorm2d(2, momentum=None)], CPU)
