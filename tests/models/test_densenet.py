"""Our DenseNet against torchvision's and timm's, the paper's sizes and what an option promises."""

from __future__ import annotations

import pytest
import timm
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rankless.models.classifiers.densenet import (
    PUBLISHED,
    DenseBlock,
    DenseLayer,
    DenseNet,
    SeparableConv,
    Variant,
)
from rankless.recipe.model_kinds import Separable
from support.norms import with_statistics

FOR_IMAGENET = ("densenet121", "densenet161", "densenet169", "densenet201")
ACTIVATIONS = ("relu", "swish", "prelu", "leaky", "mish")

variants = st.builds(
    Variant,
    blocks=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    growth=st.integers(1, 4),
    stem=st.sampled_from(["imagenet", "small"]),
    compression=st.sampled_from([0.1, 0.5, 1.0]),
    bottleneck=st.booleans(),
    separable=st.builds(Separable, dilation=st.sampled_from([0, 1, 2])),
)


@pytest.fixture(autouse=True)
def deterministic():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def shapes(model):
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", FOR_IMAGENET)
def test_state_is_that_of_torchvision(name):
    with torch.device("meta"):
        theirs = torchvision.models.get_model(name, weights=None)
        assert shapes(DenseNet(PUBLISHED[name], 1000)) == shapes(theirs)


@pytest.mark.slow
@pytest.mark.parametrize("make", [torchvision.models.densenet121, lambda: timm.create_model("densenet121")])
def test_computes_what_others_compute_with_the_same_weights(make):
    theirs = with_statistics(make())
    mine = DenseNet(PUBLISHED["densenet121"], 1000).eval()
    mine.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        torch.testing.assert_close(mine(x), theirs(x), rtol=1e-5, atol=1e-5)


def test_learns_what_torchvision_learns():
    theirs = torchvision.models.DenseNet(4, (2, 3), 8, num_classes=5).double()
    mine = DenseNet(Variant((2, 3), 4), 5).double()
    with_statistics(theirs)
    mine.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    target = torch.tensor([0, 1, 4, 2])
    for net in (mine, theirs):
        nn.functional.cross_entropy(net.train()(x), target).backward()
    expected = dict(theirs.named_parameters())
    for name, parameter in mine.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-9, atol=1e-12)
    for name, buffer in mine.named_buffers():
        torch.testing.assert_close(buffer, theirs.get_buffer(name))


def counted(variant: Variant, classes: int) -> tuple[int, int]:
    """Parameters (without a PReLU's) and norms, added up from the paper's description."""
    k = variant.growth
    channels, total, norms = 2 * k, 0, 0
    if variant.stem == "imagenet":
        total, norms = 3 * 49 * channels + 2 * channels, 1
    else:
        total = 3 * 9 * channels
    for number, layers in enumerate(variant.blocks):
        for _ in range(layers):
            c = channels
            if variant.bottleneck:
                total, norms, c = total + 2 * c + c * 4 * k, norms + 1, 4 * k
            separable = variant.separable.dilation > 0
            total, norms = total + 2 * c + (9 * c + c * k if separable else 9 * c * k), norms + 1
            channels += k
        if number + 1 < len(variant.blocks):
            kept = max(1, int(variant.compression * channels))
            total, norms, channels = total + 2 * channels + channels * kept, norms + 1, kept
    return total + 2 * channels + (channels + 1) * classes, norms + 1


@given(variants, st.sampled_from(ACTIVATIONS), st.sampled_from([0.0, 0.3]), st.integers(0, 4))
def test_every_combination_of_options_trains(variant, activation, dropout, more):
    model = DenseNet(variant, 4, activation=activation, dropout=dropout).train()
    height, width = variant.least_side + more, variant.least_side + 2 * more
    x = torch.randn(3, 3, height, width).contiguous(memory_format=torch.channels_last)
    logits = model(x)
    assert logits.shape == (3, 4)
    nn.functional.cross_entropy(logits, torch.tensor([0, 3, 1])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    parameters, norms = counted(variant, 4)
    prelus = [m for m in model.modules() if isinstance(m, nn.PReLU)]
    assert len(prelus) == (norms if activation == "prelu" else 0)  # one after each norm, none twice
    assert all(prelu.weight.numel() == 1 for prelu in prelus)
    assert sum(p.numel() for p in model.parameters()) == parameters + len(prelus)
    found = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert [type(m) for m in found] == [nn.BatchNorm2d] * norms
    assert not [name for name, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.bias is not None]


@given(variants)
@settings(settings.get_profile("files"))
def test_the_least_side_is_enough_and_one_less_is_not(variant):
    model = DenseNet(variant, 2).eval()
    least = variant.least_side
    assert model.features(torch.zeros(1, 3, least, least)).shape[2:] == (1, 1)
    if least > 1:
        with pytest.raises(RuntimeError, match="too small"):
            model(torch.zeros(1, 3, least - 1, least))


@pytest.mark.parametrize("bottleneck", [True, False])
def test_dropout_drops_of_the_new_features_only(bottleneck):
    layer = DenseLayer(6, Variant((1,), 8, bottleneck=bottleneck), "relu", 0.25).eval()
    x = torch.randn(2, 6, 32, 32)
    with torch.no_grad():
        whole = layer(x)
        layer.training = True  # the norms stay in evaluation
        dropped = layer(x)
    zero = dropped == 0
    assert whole.count_nonzero() == whole.numel()
    assert zero.float().mean().item() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(dropped[~zero], whole[~zero] / 0.75)

    block = DenseBlock(3, 6, Variant((3,), 8, bottleneck=bottleneck), "relu", 0.25).train()
    seen = []
    for inner in block:
        inner.register_forward_hook(lambda _, given, new: seen.append((given[0], new)))
    out = block(x)
    assert torch.equal(out[:, :6], x)
    # What a layer is given is handed on untouched: nothing is dropped twice, nor for some readers only.
    for given_, new in seen:
        assert torch.equal(out[:, : given_.shape[1]], given_)
        assert torch.equal(out[:, given_.shape[1] : given_.shape[1] + 8], new)


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("size", [(7, 9), (1, 2), (16, 16)])
def test_separable_conv_equals_depthwise_norm_pointwise(dilation, norm, size):
    mine = with_statistics(SeparableConv(6, 5, Separable(dilation=dilation, norm_between=norm)))
    parts = [nn.Conv2d(6, 6, 3, 1, dilation, dilation, groups=6, bias=False)]
    parts += [nn.BatchNorm2d(6)] if norm else []
    reference = nn.Sequential(*parts, nn.Conv2d(6, 5, 1, bias=False)).eval()
    state = mine.state_dict().values()
    assert len(state) == len(reference.state_dict()) == (7 if norm else 2)
    reference.load_state_dict(dict(zip(reference.state_dict(), state, strict=True)))
    x = torch.randn(2, 6, *size)
    assert mine(x).shape == (2, 5, *size)
    torch.testing.assert_close(mine(x), reference(x))


@pytest.mark.parametrize("separable", [Separable(dilation=1), Separable()])
def test_initial_weights_keep_the_variance(separable):
    layer = DenseLayer(256, Variant((1,), 64, separable=separable), "relu", 0.0)
    x = torch.randn(4, 256, 12, 12).relu()  # E[x²] = 1/2
    with torch.no_grad():
        assert layer.conv1(x).square().mean().item() == pytest.approx(1, rel=0.15)
        inside = layer.conv2(torch.randn(4, 256, 12, 12).relu())[:, :, 1:-1, 1:-1]  # padding sees less
    assert inside.square().mean().item() == pytest.approx(1, rel=0.25)
