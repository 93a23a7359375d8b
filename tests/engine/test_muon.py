"""Muon against PyTorch's, against the singular value decomposition, and on several ranks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rankless.engine.muon import Muon, orthogonal
from rankless.engine.optim import optimizer
from rankless.recipe.schema import Optim
from rankless.world.process_group import World

RECIPE = Optim(name="muon", lr=0.02, momentum=0.95, weight_decay=0.3, betas=(0.8, 0.97))


def some_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(16, 24, 3, bias=False),
        nn.BatchNorm2d(24),
        nn.Conv2d(24, 24, 5, groups=24),
        nn.Flatten(),
        nn.Linear(24, 40),
        nn.Linear(40, 50),
        nn.Linear(50, 3),
    ).to(memory_format=torch.channels_last)


MATRICES = {"0.weight", "4.weight", "5.weight"}


def give_gradients(net: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in net.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_it_is_torchs_muon_beside_torchs_adamw() -> None:
    own, theirs = some_net(), some_net()
    chosen = optimizer(own, RECIPE, dtype=torch.bfloat16)
    flat = {
        name: nn.Parameter(p.detach().movedim(1, -1).flatten(1).clone())
        for name, p in theirs.named_parameters()
        if name in MATRICES
    }
    others = [p for name, p in theirs.named_parameters() if name not in MATRICES]
    groups = [
        {"params": [p for p in others if p.ndim >= 2]},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    muon = torch.optim.Muon(
        flat.values(), lr=0.02, momentum=0.95, weight_decay=0.3, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(groups, lr=0.02, betas=(0.8, 0.97), weight_decay=0.3)
    for step in range(5):
        give_gradients(own, step)
        give_gradients(theirs, step)
        for name, parameter in flat.items():
            gradient = theirs.get_parameter(name).grad
            assert gradient is not None
            parameter.grad = gradient.movedim(1, -1).flatten(1)
        chosen.step()
        muon.step()
        adamw.step()
    for name, parameter in own.named_parameters():
        if name in MATRICES:
            # Their order of operations on bfloat16 differs.
            found, wanted = parameter.detach().movedim(1, -1).flatten(1), flat[name].detach()
            step_length = 0.02 * 0.2 * math.sqrt(max(wanted.shape))
            torch.testing.assert_close(found, wanted, rtol=0, atol=0.05 * step_length)
        else:
            torch.testing.assert_close(parameter, theirs.get_parameter(name), rtol=1e-5, atol=1e-7)


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    spread=st.floats(0, 1.5),
    scale=st.floats(-6, 6),
    seed=st.integers(0, 2**30),
)
def test_singular_vectors_stay_and_singular_values_become_about_one(
    rows: int, columns: int, spread: float, scale: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    u, _, vh = torch.linalg.svd(drawn, full_matrices=False)
    values = 10 ** (scale - spread * torch.rand(min(rows, columns), generator=generator, dtype=torch.float64))
    found = u.mT @ orthogonal(u * values @ vh) @ vh.mT
    diagonal = found.diagonal()
    torch.testing.assert_close(found, diagonal.diag(), rtol=0, atol=1e-6)
    assert float(diagonal.min()) > 0.5 and float(diagonal.max()) < 1.3


def weights_after(world: World, dtype: torch.dtype) -> list[Any]:
    """The weights after some steps on the ranks of ``world``, and how many matrices this one computed."""
    net = some_net()
    chosen = optimizer(net, RECIPE, world=world, dtype=dtype)
    assert isinstance(chosen, Muon)
    computed = 0

    def counted(matrix: Tensor) -> Tensor:
        nonlocal computed
        computed += 1
        return orthogonal(matrix)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankless.engine.muon.orthogonal", counted)
        for step in range(3):
            give_gradients(net, step)
            chosen.step()
    return [[p.detach().numpy().tobytes() for p in net.parameters()], computed]


@pytest.mark.processes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ranks_share_the_work_and_get_the_bits_of_one(ranks: Any, dtype: torch.dtype) -> None:
    ((alone, all_of_them),) = ranks(1, weights_after, dtype)
    assert all_of_them == 3 * 3
    for size in (2, 3):
        answers = ranks(size, weights_after, dtype)
        assert all(weights == alone for weights, _ in answers)
        assert [computed for _, computed in answers] == {2: [3, 6], 3: [3, 3, 3]}[size]
