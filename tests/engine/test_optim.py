"""Groups, weight decay, clipping and the optimizer's state, against torch's own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankless.engine.optim import divide_and_clip, optimizer, restore_state, state_tensors
from rankless.engine.schedule import set_rate
from rankless.errors import UserError
from rankless.recipe.schema import Optim


def some_net() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.PReLU(16), nn.Flatten(), nn.Linear(16, 2), nn.LayerNorm(2)
    )
    net[5].bias.requires_grad_(False)
    return net.to(memory_format=torch.channels_last)


def step(net: nn.Module, chosen: torch.optim.Optimizer, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    chosen.step()


NETS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("name", ["sgd", "nesterov", "adam", "adamw"])
def test_every_optimizer_is_torchs(name: str, everything: bool, portable: bool) -> None:
    """Torch's own, with the weight decay on all parameters, or on those of convolutions and linear layers."""
    own, theirs = some_net(), some_net()
    nesterov, name = name == "nesterov", name.replace("nesterov", "sgd")
    settings: dict[str, Any] = {"name": name, "nesterov": nesterov, "decay_norms_and_biases": everything}
    recipe = Optim(lr=0.02, betas=(0.8, 0.97), weight_decay=0.3, **settings)
    chosen = optimizer(own, recipe, portable=portable)
    decayed = [p for p in theirs.parameters() if p.requires_grad and (everything or p.ndim >= 2)]
    plain = [p for p in theirs.parameters() if p.requires_grad and not (everything or p.ndim >= 2)]
    groups = [{"params": decayed}, *([{"params": plain, "weight_decay": 0.0}] if plain else [])]
    more = {"momentum": 0.9, "nesterov": nesterov} if name == "sgd" else {"betas": (0.8, 0.97)}
    oracle = NETS[name](groups, lr=0.02, weight_decay=0.3, **more)  # type: ignore[arg-type]
    for seed in range(4):
        step(own, chosen, seed), step(theirs, oracle, seed)
    for name_of, parameter in own.named_parameters():
        torch.testing.assert_close(parameter, theirs.get_parameter(name_of), rtol=1e-5, atol=1e-7)


def gradients(dtype: torch.dtype) -> list[nn.Parameter]:
    torch.manual_seed(1)
    made = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in ((4, 3, 3, 3), (7,), (2, 5))]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, dtype=dtype) * 40
    made.append(nn.Parameter(torch.zeros(2)))  # without a gradient
    return made


@pytest.mark.parametrize("count", [torch.tensor(0.25), torch.tensor(16.0).double(), *torch.tensor([8, 0])])
@pytest.mark.parametrize("limit", [0.0, 0.5, 20.0, 1e6])
def test_clipping_is_torchs(count: Tensor, limit: float) -> None:
    """A limit of zero is none, and a count of zero counts as one."""
    own, theirs = gradients(torch.float64), gradients(torch.float64)
    norm = divide_and_clip(own, count, limit)
    for parameter in theirs:
        if parameter.grad is not None:
            parameter.grad /= float(count) or 1
    expected = nn.utils.clip_grad_norm_(theirs, limit or torch.inf)
    assert norm.item() == pytest.approx(expected.item(), rel=1e-12)
    for one, other in zip(own[:-1], theirs[:-1], strict=True):  # the counts are powers of two
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12 if limit else 0, atol=0)
    assert own[-1].grad is None


@pytest.mark.parametrize(
    "recipe",
    [
        Optim(momentum=0.9, lr=0.1),
        Optim(name="adam", lr=0.1),
        Optim(name="adamw", lr=0.1),
        Optim(momentum=0.0, lr=0.1),
        Optim(name="adam", lr=0.1, decay_norms_and_biases=True),
        Optim(name="muon", lr=0.1),
    ],
)
def test_the_state_goes_into_tensors_and_back(recipe: Optim) -> None:
    net = some_net()
    chosen = optimizer(net, recipe)
    for seed in range(3):
        step(net, chosen, seed)
    kept = {key: value.clone() for key, value in state_tensors(chosen, net).items()}
    slots = {"adam": 3, "adamw": 3, "muon": 3, "sgd": 1 if recipe.momentum else 0}[recipe.name]
    trained = sum(p.requires_grad for p in net.parameters())
    matrices = sum("momentum_buffer" in key for key in kept) if recipe.name == "muon" else 0
    assert len(kept) == slots * (trained - matrices) + matrices

    other = some_net()
    other.load_state_dict(net.state_dict())
    resumed = optimizer(other, recipe)
    restore_state(resumed, other, kept)
    for seed in range(3, 6):
        step(net, chosen, seed), step(other, resumed, seed)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    for key, value in state_tensors(chosen, net).items():
        found = state_tensors(resumed, other)[key]
        assert torch.equal(found, value)
        assert found.stride() == value.stride(), key


def test_a_portable_adamw_takes_no_root_of_mkls() -> None:
    """On another processor, the last bit of such a root may be another."""

    def steps(portable: bool) -> Tensor:
        rng = torch.Generator().manual_seed(0)
        net = nn.Linear(50, 40)
        with torch.no_grad():
            net.weight.normal_(generator=rng)
        made = optimizer(net, Optim(name="adamw", lr=0.01), portable=portable)
        for _ in range(3):
            for parameter in net.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=rng)
            made.step()
        return net.weight.detach().clone()

    torch.testing.assert_close(steps(True), steps(False))
    for is_portable in (True, False):
        with torch.autograd.profiler.profile() as seen:
            steps(is_portable)
        assert any("sqrt" in event.name for event in seen.function_events) is not is_portable


@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
def test_the_backbone_may_have_a_rate_of_its_own(name: str) -> None:
    """Each parameter moves as with the optimizer of one rate, at a tenth of it in the backbone."""
    nets = [some_net() for _ in range(3)]
    recipe = Optim(name=name, weight_decay=0.3, backbone_factor=0.1)  # type: ignore[arg-type]
    nets[0].backbone = lambda: [nets[0][0], nets[0][1]]  # type: ignore[assignment]
    chosen = [optimizer(nets[0], recipe)]
    chosen += [optimizer(net, dataclasses.replace(recipe, backbone_factor=1.0)) for net in nets[1:]]
    for one, rate in zip(chosen, (0.2, 0.2, 0.02), strict=True):
        set_rate(one, rate)
    for net, one in zip(nets, chosen, strict=True):
        step(net, one, 1)
    mine, full, tenth = (net.state_dict() for net in nets)
    for key in mine:
        assert torch.equal(mine[key], (tenth if key[0] in "01" else full)[key]), key
    assert not torch.equal(full["0.weight"], tenth["0.weight"])


def test_a_rate_for_a_backbone_needs_a_backbone() -> None:
    with pytest.raises(
        UserError, match=r"optim.backbone_factor is 0.1, but the model .* does not define its backbone"
    ):
        optimizer(some_net(), Optim(backbone_factor=0.1))
