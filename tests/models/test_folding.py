"""Folded batch norms against the same net without folding, in float64."""

from __future__ import annotations

import copy

import torch
from torch import nn

from rankless.models.folding import fold_batch_norms
from rankless.models.layers import ConvBlock


def some_net() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        ConvBlock(3, 8, 3, 2),
        ConvBlock(8, 8, 3, groups=4, activation="mish"),
        nn.MaxPool2d(2),
        ConvBlock(8, 5, 1, norm=False, activation="linear"),
        nn.BatchNorm2d(5),
    )
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.1, 3)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return net.eval()


def test_it_is_the_same_function_with_fewer_layers() -> None:
    net = some_net().double()
    folded = copy.deepcopy(net)
    fold_batch_norms(folded, torch.float64)
    assert [type(one) for one in folded.modules()].count(nn.BatchNorm2d) == 1, "what is no block's stays"
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    with torch.inference_mode():
        torch.testing.assert_close(folded(images), net(images), rtol=1e-12, atol=1e-12)


def test_weights_of_autocasts_type_give_autocasts_bits() -> None:
    net = some_net()
    once, each_time = copy.deepcopy(net), net
    fold_batch_norms(once, torch.bfloat16)
    fold_batch_norms(each_time, torch.float32)
    images = torch.rand(2, 3, 16, 16)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(once(images), each_time(images))
