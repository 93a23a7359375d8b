"""Convolutions in half precision against float64, with all new memory full of NaN (conftest.py)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rankless.hardware.precision import autocast
from rankless.models.activation_checkpointing import checkpoint_activations

CPU = torch.device("cpu")
Numbers = dict[str, Tensor]


def numbers(layer: nn.Module, image: Tensor, precision: str) -> Numbers:
    """The output and all gradients of a loss whose gradient is not constant."""
    image = image.clone(memory_format=torch.preserve_format).requires_grad_()
    layer.zero_grad(set_to_none=True)
    with autocast(precision, CPU):
        made = layer(image)
    made.double().square().sum().backward()
    gradients = {name: one.grad for name, one in layer.named_parameters() if one.grad is not None}
    assert image.grad is not None
    return {"output": made.detach(), "image": image.grad, **gradients}


def check(layer: nn.Module, image: Tensor, precision: str = "bf16") -> None:
    """The layer's numbers are those in float64, rounded, and the same twice."""
    precise = numbers(copy.deepcopy(layer).double(), image.double(), "fp32")
    first, second = (numbers(layer, image, precision) for _ in range(2))
    for name, expected in precise.items():
        scale = expected.abs().max().clamp(min=1).item()
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name].double(), expected, rtol=0.05, atol=0.05 * scale, msg=name)


@st.composite
def options(draw: st.DrawFn, sides: int) -> tuple[dict[str, Any], list[int]]:
    """Those of a layer, and the sides of a map that fits it."""
    groups, out = draw(st.sampled_from([(1, 16), (1, 3), (16, 16), (16, 32), (4, 16)]))
    kernel, dilation = draw(st.sampled_from([1, 2, 3, 5])), draw(st.integers(1, 2))
    padding = draw(st.integers(0, kernel // 2 * dilation))
    stride = tuple(draw(st.integers(1, 4)) for _ in range(sides))
    smallest = dilation * (kernel - 1) + 1  # nothing is left of a smaller map, transposed or not
    shape = [draw(st.integers(max(1, smallest - 2 * padding), max(5, smallest))) for _ in range(sides)]
    given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return {"out_channels": out, "kernel_size": kernel, **given}, shape


@pytest.mark.slow
@given(st.data())
@settings(settings.get_profile("files"))
@pytest.mark.parametrize(
    "kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
)
def test_a_convolution_depends_on_its_operands_alone(kind: Callable[..., Any], data: st.DataObject) -> None:
    sides = int(kind.__name__[-2])
    given, shape = data.draw(options(sides))
    torch.manual_seed(0)
    layer, image = kind(16, **given), torch.randn(2, 16, *shape)
    strides = zip(shape, layer.stride, layer.padding, layer.dilation, layer.kernel_size, strict=True)
    if layer.transposed and any((side - 1) * s - 2 * p + d * (k - 1) < 0 for side, s, p, d, k in strides):
        return  # the padding is larger than the result
    last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(sides, torch.contiguous_format)
    check(layer.to(memory_format=last), image.contiguous(memory_format=last))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("groups", "out", "stride", "size"),
    [
        (1, 16, 2, (1, 1)),  # RetinaNet's last level at 64 pixels
        (16, 16, 2, (2, 1)),  # SSDlite's on portrait images
        (1, 16, 4, (5, 3)),
        (16, 32, (1, 2), (5, 2)),  # the output itself
    ],
)
def test_convolutions_read_no_unwritten_memory(
    precision: str, groups: int, out: int, stride: int | tuple[int, int], size: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(16, out, 3, stride, 1, groups=groups).to(memory_format=torch.channels_last)
    check(layer, torch.randn(2, 16, *size).contiguous(memory_format=torch.channels_last), precision)


def test_a_block_that_is_computed_again_and_a_thread_are_sound() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(16, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 16, 3, 2, 1))
    net = nn.Sequential(block, nn.Conv2d(16, 4, 1)).to(memory_format=torch.channels_last)
    image = torch.randn(2, 16, 2, 1).contiguous(memory_format=torch.channels_last)
    plain = numbers(copy.deepcopy(net), image, "bf16")
    with ThreadPoolExecutor(1) as pool:
        threaded = pool.submit(numbers, copy.deepcopy(net), image, "bf16").result()
    assert checkpoint_activations(net)
    again = numbers(net, image, "bf16")
    for name, expected in plain.items():
        assert torch.equal(again[name], expected) and torch.equal(threaded[name], expected), name
