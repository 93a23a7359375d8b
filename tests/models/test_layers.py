"""The small parts against literal ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rankless.models.layers import ConvBlock, SamePool, upsample


def test_same_pool_looks_right_and_down():
    x = -torch.rand(2, 3, 4, 5)  # negative: a padding with zeros would win
    y = SamePool()(x)
    for j in range(4):
        for i in range(5):
            expected = x[:, :, j : j + 2, i : i + 2].amax((2, 3))
            assert torch.equal(y[:, :, j, i], expected)


def test_upsample_repeats_and_keeps_channels_last():
    x = torch.randn(2, 4, 3, 5).contiguous(memory_format=torch.channels_last)
    y = upsample(x)
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
    ],
)
def test_conv_block_is_convolution_norm_activation(activation, function):
    block = ConvBlock(3, 8, 3, 2, activation=activation, momentum=0.2)
    assert block.conv.bias is None
    x = torch.randn(4, 3, 8, 8)
    y = F.conv2d(x, block.conv.weight, stride=2, padding=1)
    mean, var = y.mean((0, 2, 3)), y.var((0, 2, 3), unbiased=False)
    expected = function((y - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt())
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(block.norm.running_mean, 0.2 * mean)
