"""Square roots and arctangents that are the same on every CPU, compared with float64 and with PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rankless.hardware.portable import PortableFunctions
from rankless.hardware.precision import autocast

FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[float], float]]] = {
    "sqrt": (torch.sqrt, math.sqrt),
    "Tensor.sqrt": (Tensor.sqrt, math.sqrt),
    "pow": (lambda x: torch.pow(x, 0.5), math.sqrt),
    "**": (lambda x: x**0.5, math.sqrt),
    "atan": (torch.atan, math.atan),
    "Tensor.arctan": (Tensor.arctan, math.atan),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_are_within_one_unit_of_the_exact_ones(name: str, dtype: torch.dtype) -> None:
    function, exact = FUNCTIONS[name]
    chance = torch.Generator().manual_seed(0)
    x = torch.cat((torch.rand(500, generator=chance, dtype=dtype), torch.tensor([0.0, 4.0, 1e-30, 1e30])))
    with PortableFunctions():
        made = function(x.to(dtype))
    expected = torch.tensor([exact(value) for value in x.to(dtype).tolist()], dtype=torch.float64)
    unit = torch.finfo(dtype).eps * (0.51 if dtype == torch.float32 else 1.01)
    torch.testing.assert_close(made.double(), expected, rtol=unit, atol=0)
    assert made.dtype == dtype


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_right(name: str) -> None:
    function, _ = FUNCTIONS[name]
    x = torch.linspace(0.1, 3, 7, dtype=torch.float64, requires_grad=True)

    def portable(x: Tensor) -> Tensor:
        with PortableFunctions():
            return function(x)

    assert torch.autograd.gradcheck(portable, (x,))


def test_the_gradient_of_a_root_of_zero_is_infinite_as_in_pytorch() -> None:
    x = torch.zeros(3, requires_grad=True)
    with PortableFunctions():
        x.sqrt().sum().backward()
    assert x.grad is not None and torch.isinf(x.grad).all()
    assert "SquareRoot" not in type(x.sqrt().grad_fn).__name__  # outside of the context


def test_other_arguments_reach_pytorch() -> None:
    with PortableFunctions():
        assert torch.equal(torch.pow(2.0, torch.tensor([3.0])), torch.tensor([8.0]))
        assert torch.equal(torch.tensor([3.0]) ** 2, torch.tensor([9.0]))
        assert torch.equal(torch.tensor([4]).sqrt(), torch.tensor([2.0]))


@pytest.mark.parametrize("limited_to", ["native", "avx2"], indirect=True)
def test_forward_passes_use_the_replacements_if_the_libraries_are_limited(limited_to: str) -> None:
    with autocast("fp32", torch.device("cpu")):
        root = torch.rand(4, requires_grad=True).sqrt()
    assert ("SquareRoot" in type(root.grad_fn).__name__) == (limited_to == "avx2")
