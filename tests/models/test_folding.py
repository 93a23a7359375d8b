"""Folded batch norms and fused activations against the same net without folding, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from rankless.models.folding import fold_batch_norms
from rankless.models.layers import ConvBlock
from support.norms import with_statistics


def some_net() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        ConvBlock(3, 8, 3, 2),
        ConvBlock(8, 8, 3, groups=4, activation="mish"),
        nn.MaxPool2d(2),
        ConvBlock(8, 8, 3, groups=8, activation="swish"),
        ConvBlock(8, 8, 1, activation="relu"),
        ConvBlock(8, 5, 1, norm=False, activation="linear"),
    )
    return with_statistics(net)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.05)]
)
def test_it_is_the_same_function_with_fewer_layers(dtype: torch.dtype, tolerance: float) -> None:
    net = with_statistics(nn.Sequential(some_net(), nn.BatchNorm2d(5))).double()
    folded = copy.deepcopy(net).to(dtype)
    assert not fold_batch_norms(folded, dtype)
    assert [type(one) for one in folded.modules()].count(nn.BatchNorm2d) == 1, "what is no block's stays"
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    with torch.inference_mode():
        found, expected = folded(images.to(dtype)).double(), net(images)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_image_has_the_same_bits_in_a_batch_of_any_size(dtype: torch.dtype) -> None:
    net = with_statistics(
        nn.Sequential(ConvBlock(3, 8, 3, 2), ConvBlock(8, 8, 3, groups=8), ConvBlock(8, 5, 1))
    )
    if not fold_batch_norms(net, dtype):
        pytest.skip("oneDNN does not compute this dtype here")
    images = torch.rand(17, 3, 24, 24)
    with torch.inference_mode():
        expected = net(images[:1])
        assert expected.dtype == dtype
        for count in (2, 16, 17):
            assert torch.equal(net(images[:count])[:1], expected), f"{count} images"
        assert torch.equal(net(images.flip(0))[-1:], expected)
        assert net(torch.rand(1, 3, 40, 32)).shape == (1, 5, 20, 16), "another size"


def test_what_onednn_computes_wrongly_is_not_fused() -> None:
    net = with_statistics(nn.Sequential(ConvBlock(8, 16, 3, 2, groups=8)))
    assert not fold_batch_norms(net, torch.bfloat16)
    assert isinstance(net[0], ConvBlock)
