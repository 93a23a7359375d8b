"""Groups, weight decay, clipping and the optimizer's state, against torch's own."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

from rankless.engine.optim import divide_and_clip, optimizer, restore_state, state_tensors
from rankless.engine.rates import set_rate
from rankless.errors import UserError
from rankless.recipe.schema import Optim


def some_net() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.PReLU(16), nn.Flatten(), nn.Linear(16, 2), nn.LayerNorm(2)
    )
    net[5].bias.requires_grad_(False)
    return net.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
def test_only_weights_of_convolutions_and_linear_layers_decay(name: str) -> None:
    net = some_net()
    before = copy.deepcopy(net.state_dict())
    recipe = Optim(name=name, lr=0.1, weight_decay=0.5, momentum=0.0)  # type: ignore[arg-type]
    chosen = optimizer(net, recipe)
    held = [p for group in chosen.param_groups for p in group["params"]]
    assert len(held) == len(set(held)) and set(held) == {p for p in net.parameters() if p.requires_grad}
    for parameter in held:
        parameter.grad = torch.zeros_like(parameter)
    chosen.step()
    shrunk = {n for n, p in net.named_parameters() if not torch.equal(p, before[n])}
    assert shrunk == {"0.weight", "4.weight"}
    for key in shrunk:
        torch.testing.assert_close(net.state_dict()[key], before[key] * (1 - 0.1 * 0.5))


NETS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("name", list(NETS))
def test_every_optimizer_is_torchs(name: str, everything: bool, portable: bool) -> None:
    """Torch's own, with the weight decay on all parameters, or on those of convolutions and linear layers."""
    own, theirs = some_net(), some_net()
    recipe = Optim(name=name, lr=0.02, betas=(0.8, 0.97), weight_decay=0.3, decay_norms_and_biases=everything)  # type: ignore[arg-type]
    chosen = optimizer(own, recipe, portable=portable)
    decayed = [p for p in theirs.parameters() if p.requires_grad and (everything or p.ndim >= 2)]
    plain = [p for p in theirs.parameters() if p.requires_grad and not (everything or p.ndim >= 2)]
    groups = [{"params": decayed}, *([{"params": plain, "weight_decay": 0.0}] if plain else [])]
    more = {"momentum": 0.9} if name == "sgd" else {"betas": (0.8, 0.97)}
    oracle = NETS[name](groups, lr=0.02, weight_decay=0.3, **more)  # type: ignore[arg-type]
    for seed in range(4):
        for net, one in ((own, chosen), (theirs, oracle)):
            torch.manual_seed(seed)
            for parameter in net.parameters():
                parameter.grad = torch.randn_like(parameter)
            one.step()
    for name_of, parameter in own.named_parameters():
        torch.testing.assert_close(parameter, theirs.get_parameter(name_of), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_the_formula(nesterov: bool) -> None:
    recipe = Optim(lr=0.3, momentum=0.8, nesterov=nesterov, weight_decay=0.0)
    layer = nn.Linear(3, 2, bias=False).double()
    chosen = optimizer(layer, recipe)
    weight = layer.weight.detach().clone()
    velocity = torch.zeros_like(weight)
    for step in range(4):
        gradient = torch.full_like(weight, step + 1.0)
        layer.weight.grad = gradient.clone()
        set_rate(chosen, 0.3 / (step + 1))
        chosen.step()
        velocity = 0.8 * velocity + gradient
        weight -= 0.3 / (step + 1) * (gradient + 0.8 * velocity if nesterov else velocity)
    torch.testing.assert_close(layer.weight.detach(), weight)


def gradients(dtype: torch.dtype) -> list[nn.Parameter]:
    torch.manual_seed(1)
    made = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in ((4, 3, 3, 3), (7,), (2, 5))]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, dtype=dtype) * 40
    made.append(nn.Parameter(torch.zeros(2)))  # without a gradient
    return made


@pytest.mark.parametrize("count", [1.0, 16.0, 0.25])
@pytest.mark.parametrize("limit", [0.5, 20.0, 1e6])
def test_clipping_is_torchs(count: float, limit: float) -> None:
    own, theirs = gradients(torch.float64), gradients(torch.float64)
    norm = divide_and_clip(own, torch.tensor(count, dtype=torch.float64), limit)
    for parameter in theirs:
        if parameter.grad is not None:
            parameter.grad /= count
    expected = nn.utils.clip_grad_norm_(theirs, limit)
    assert norm.item() == pytest.approx(expected.item(), rel=1e-12)
    for one, other in zip(own[:-1], theirs[:-1], strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=0)
    assert own[-1].grad is None


@pytest.mark.parametrize(
    "count", [torch.tensor(8.0), torch.tensor(8), torch.tensor(8.0, dtype=torch.float64)]
)
def test_without_a_limit_gradients_are_only_divided(count: Tensor) -> None:
    own, before = gradients(torch.float32), gradients(torch.float32)
    norm = divide_and_clip(own, count, 0.0)
    length = torch.cat([p.grad.flatten() for p in before[:-1] if p.grad is not None]).norm() / 8
    assert norm.item() == pytest.approx(length.item(), rel=1e-6)
    for one, other in zip(own[:-1], before[:-1], strict=True):
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad / 8)  # type: ignore[arg-type]  # a power of two: exact


@pytest.mark.parametrize("count", [torch.tensor(0.0, dtype=torch.float64), torch.tensor(0)])
@pytest.mark.parametrize("limit", [0.0, 1e6])
def test_a_count_of_zero_counts_as_one(count: Tensor, limit: float) -> None:
    own, before = gradients(torch.float32), gradients(torch.float32)
    divide_and_clip(own, count, limit)
    for one, other in zip(own[:-1], before[:-1], strict=True):
        torch.testing.assert_close(one.grad, other.grad)


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
    def step(net: nn.Module, chosen: torch.optim.Optimizer, seed: int) -> None:
        torch.manual_seed(seed)
        for parameter in net.parameters():
            parameter.grad = torch.randn_like(parameter)
        chosen.step()

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
        step(net, chosen, seed)
        step(other, resumed, seed)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    for key, value in state_tensors(chosen, net).items():
        found = state_tensors(resumed, other)[key]
        assert torch.equal(found, value)
        assert found.stride() == value.stride(), key


def test_a_portable_adamw_takes_no_root_of_mkls(monkeypatch: pytest.MonkeyPatch) -> None:
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

    whole, portable = steps(False), steps(True)
    torch.testing.assert_close(portable, whole)
    # MKL's root on another processor: the last bit is another.
    off = lambda tensors: [tensor.sqrt().nextafter(torch.zeros(())) for tensor in tensors]  # noqa: E731
    monkeypatch.setattr(torch, "_foreach_sqrt", off)
    assert not torch.equal(steps(False), whole)
    assert torch.equal(steps(True), portable)


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
        torch.manual_seed(1)
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn_like(parameter)
        one.step()
    mine, full, tenth = (net.state_dict() for net in nets)
    for key in mine:
        assert torch.equal(mine[key], (tenth if key[0] in "01" else full)[key]), key
    assert not torch.equal(full["0.weight"], tenth["0.weight"])


def test_a_rate_for_a_backbone_needs_a_backbone() -> None:
    with pytest.raises(
        UserError, match=r"optim.backbone_factor is 0.1, but the model .* does not define its backbone"
    ):
        optimizer(some_net(), Optim(backbone_factor=0.1))
