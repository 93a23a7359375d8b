"""Count the parameters, operations and outputs of a network on the meta device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

# These modules preserve shapes and do not count as work. On the meta device, they would take nearly all the
# time, because each runs dozens of small operations in Python.
_SHAPE_PRESERVING = (nn.BatchNorm2d, nn.ReLU, nn.LeakyReLU, nn.SiLU, nn.Mish, nn.Sigmoid)


def parameters_and_gflops(build: Callable[[], nn.Module], size: tuple[int, int]) -> tuple[int, float]:
    """Count a network's parameters, and its GFLOPs per image of ``size`` (height, width).

    Only convolutions and matrix products count, and a multiply-accumulate counts as two operations.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = build().eval()
    parameters = sum(p.numel() for p in model.parameters())
    for module in model.modules():
        if type(module) in _SHAPE_PRESERVING:
            module.forward = _unchanged
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(1, 3, *size, device="meta"))
    return parameters, counter.get_total_flops() / 1e9


def convolution_outputs(build: Callable[[], nn.Module], size: tuple[int, int]) -> list[int]:
    """Count the output values of each convolution for one image of ``size`` (height, width)."""
    with torch.device("meta"):
        model = build().eval()
    counts: list[int] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _, inputs, output: counts.append(output.numel()))
        elif type(module) in _SHAPE_PRESERVING:
            module.forward = _unchanged
    with torch.no_grad():
        model(torch.empty(1, 3, *size, device="meta"))
    return counts


Layer = tuple[str, str, str, int]
"""Name, type, output shape for one image, and number of parameters of a layer (0 if already counted)."""


def layers(build: Callable[[], nn.Module], size: tuple[int, int]) -> tuple[list[Layer], int]:
    """List the layers of a network in the order of computation, and count its parameters."""
    with torch.device("meta"):
        model = build().eval()
    found: list[Layer] = []
    seen = set[str]()
    for name, module in model.named_modules():
        if next(module.children(), None) is None:

            def note(module: nn.Module, _: object, output: object, name: str = name) -> None:
                shape = "×".join(map(str, output.shape[1:])) if isinstance(output, Tensor) else ""
                own = 0 if name in seen else sum(p.numel() for p in module.parameters())
                seen.add(name)
                found.append((name, type(module).__name__, shape, own))

            module.register_forward_hook(note)
    with torch.no_grad():
        model(torch.empty(1, 3, *size, device="meta"))
    return found, sum(p.numel() for p in model.parameters())


def _unchanged(x: Tensor) -> Tensor:
    return x
