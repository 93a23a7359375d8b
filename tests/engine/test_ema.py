"""The average of the weights, against the sum written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rankless.engine.ema import Ema


def test_the_average_is_the_weighted_sum_of_all_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    average = Ema(model, decay=0.3)
    decays = [min(0.3, (1 + step) / (10 + step)) for step in range(8)]
    assert decays[0] == 0.1 and decays[-1] == 0.3  # the ramp and its end are both walked through
    history = [{name: value.clone() for name, value in model.state_dict().items()}]
    for step in range(8):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        model[1].num_batches_tracked += 3
        model[1].running_mean.normal_()
        history.append({name: value.clone() for name, value in model.state_dict().items()})
        average.update(step)
    # The share of history[i] is what its step let in times what every later step kept.
    shares = [1.0, *(1 - decay for decay in decays)]
    for number in range(len(shares)):
        for decay in decays[number:]:
            shares[number] *= decay
    assert sum(shares) == pytest.approx(1)
    for name, value in average.model.state_dict().items():
        if value.is_floating_point():
            expected = sum(share * past[name] for share, past in zip(shares, history, strict=True))
            torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    assert average.model[1].num_batches_tracked == 24  # a count is no average


def test_it_is_a_model_of_its_own() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Dropout()).train().to(memory_format=torch.channels_last)
    average = Ema(model, decay=0.9)
    assert not average.model.training and model.training
    assert not any(p.requires_grad for p in average.model.parameters())
    assert all(p.requires_grad for p in model.parameters())
    before = model[0].weight.detach().clone()
    with torch.no_grad():
        average.model[0].weight.zero_()
    assert torch.equal(model[0].weight, before)
    assert list(average.model.state_dict()) == list(model.state_dict())


class Tied(nn.Module):
    """Two layers with one weight, a buffer that every forward pass replaces, and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def state_dict(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("it takes longer than all else that Python does in a step")


def test_tied_weights_are_averaged_once_and_buffers_may_be_replaced() -> None:
    model = Tied()
    average = Ema(model, decay=0.5)
    before = average.model.first.weight.clone()
    with torch.no_grad():
        model.first.weight += 1
    for value, weight in ((1.0, 0.5), (2.0, 0.75)):
        model.seen, model.scratch = torch.tensor([value]), torch.tensor([value])
        average.update(step=100)
        torch.testing.assert_close(average.model.first.weight, before + weight)
    assert average.model.second.weight is average.model.first.weight
    assert average.model.seen.item() == 1.25
    assert average.model.scratch.item() == 0  # is not saved
