"""Gradients of depthwise convolutions over one pixel in bf16, with memory full of NaN, against float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from rankless.engine.one_pixel import avoid_strides_over_one_pixel


def _gradient(conv: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    conv.zero_grad()
    conv(pixels).double().square().sum().backward()
    return conv.weight.grad.clone()


@pytest.mark.parametrize(("kernel", "channels"), [(3, 16), (3, 64), (5, 96), (7, 16)])
def test_the_gradient_is_the_same_every_time(kernel: int, channels: int) -> None:
    torch.manual_seed(1)
    conv = nn.Conv2d(channels, channels, kernel, 2, kernel // 2, groups=channels, bias=False)
    pixels = torch.randn(2, channels, 1, 1).contiguous(memory_format=torch.channels_last)
    expected = _gradient(copy.deepcopy(conv).double(), pixels.double()).float()
    conv.to(memory_format=torch.channels_last)
    avoid_strides_over_one_pixel(conv)
    gradients = []
    for _ in range(40):
        dirt = [torch.full((2**size,), float("nan")) for size in range(3, 18)]
        del dirt  # what is allocated next lies there
        with torch.autocast("cpu", torch.bfloat16):
            gradients.append(_gradient(conv, pixels))
    torch.testing.assert_close(gradients[0], expected, rtol=0.05, atol=0.05)
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)


def test_results_names_and_weights_stay() -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1, groups=8), nn.Conv2d(8, 8, 3, 2, 0, groups=2))
    plain = copy.deepcopy(net)
    avoid_strides_over_one_pixel(net)
    assert list(net.state_dict()) == list(plain.state_dict())
    assert type(net[1]) is nn.Conv2d, "without padding the stride decides whether it fits at all"
    for side in (1, 5, 6):
        pixels = torch.randn(2, 8, side, side)
        torch.testing.assert_close(copy.deepcopy(net)[0](pixels), plain[0](pixels))
