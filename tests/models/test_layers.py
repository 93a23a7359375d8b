"""The small parts against literal ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rankless.models.detectors.convolutional import Upsample
from rankless.models.layers import ConvBlock, Involution, PaddedPool, max_pool


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [(2, 1, 1), (2, 2, 1), (3, 1, 2), (5, 1, 4), (3, 2, 2), (4, 2, 3), (3, 2, 0)],
)
def test_max_pool_looks_where_darknet_looks(size, stride, padding):
    x = -torch.rand(2, 3, 8, 6)  # negative: a padding with zeros would win
    y = max_pool(size, stride, padding)(x)
    assert torch.equal(y, PaddedPool(size, stride, padding)(x))
    before = padding // 2
    for j in range(y.shape[2]):
        for i in range(y.shape[3]):
            top, left = j * stride - before, i * stride - before
            window = x[:, :, max(top, 0) : top + size, max(left, 0) : left + size]
            assert torch.equal(y[:, :, j, i], window.amax((2, 3)))
    assert y.shape[2:] == ((8 + padding - size) // stride + 1, (6 + padding - size) // stride + 1)


@pytest.mark.parametrize(("channels", "size"), [(16, 3), (32, 7), (24, 3)])
def test_involution_weighs_neighbors_by_the_kernel_of_the_pixel(channels, size):
    torch.manual_seed(0)
    layer = Involution(channels, size).double().requires_grad_(False)
    x = torch.randn(2, channels, 5, 4, dtype=torch.float64)
    kernels = layer.span(layer.reduce(x))  # (B, groups * size², H, W)
    y, half, width = layer(x), size // 2, channels // layer.groups
    for b, c, j, i in ((0, 0, 0, 0), (1, channels - 1, 4, 3), (0, 5, 2, 1), (1, width - 1, 1, 2)):
        total = 0.0
        for dy in range(size):
            for dx in range(size):
                row, column = j + dy - half, i + dx - half
                if 0 <= row < 5 and 0 <= column < 4:
                    weight = kernels[b, (c // width) * size**2 + dy * size + dx, j, i]
                    total += float(weight * x[b, c, row, column])
        assert float(y[b, c, j, i]) == pytest.approx(total, abs=1e-12)


def test_upsample_repeats_and_keeps_channels_last():
    x = torch.randn(2, 4, 3, 5).contiguous(memory_format=torch.channels_last)
    y = Upsample(2, 1.0)(x)
    assert torch.equal(y, x.repeat_interleave(2, 2).repeat_interleave(2, 3))
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("leaky", lambda x: torch.where(x > 0, x, 0.1 * x)),
        ("mish", lambda x: x * torch.tanh(F.softplus(x))),
        ("swish", lambda x: x * torch.sigmoid(x)),
        ("relu", lambda x: x.clamp(min=0)),
        ("linear", lambda x: x),
        ("logistic", lambda x: 1 / (1 + torch.exp(-x))),
        ("tanh", torch.tanh),
        ("relu6", lambda x: x.clamp(0, 6)),
        ("elu", lambda x: torch.where(x >= 0, x, torch.exp(x) - 1)),
        ("selu", lambda x: torch.where(x >= 0, 1.0507 * x, 1.0507 * 1.6732 * (torch.exp(x) - 1))),
        ("gelu", lambda x: 0.5 * x * (1 + torch.tanh(0.797885 * x + 0.035677 * x**3))),
        ("hard_mish", lambda x: torch.where(x > 0, x, torch.where(x > -2, x * x / 2 + x, 0 * x))),
        ("hardtan", lambda x: x.clamp(-1, 1)),
        ("loggy", lambda x: 2 / (1 + torch.exp(-x)) - 1),
        ("prelu", lambda x: torch.where(x > 0, x, 0.25 * x)),
        ("ramp", lambda x: x * (x > 0) + 0.1 * x),
        ("relie", lambda x: torch.where(x > 0, x, 0.01 * x)),
    ],
)
def test_conv_block_is_convolution_norm_activation(activation, function):
    block = ConvBlock(3, 8, 3, 2, activation=activation)
    assert block.conv.bias is None
    x = torch.randn(4, 3, 8, 8)
    y = F.conv2d(x, block.conv.weight, stride=2, padding=1)
    mean, var = y.mean((0, 2, 3)), y.var((0, 2, 3), unbiased=False)
    expected = function((y - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt())
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(block.norm.running_mean, 0.03 * mean)
