"""Count the parameters, operations and outputs of a network on the meta device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

# These modules preserve shapes and are not counted. Yet they take nearly all the time, because each runs
# dozens of small operations in Python on the meta device.
_SHAPE_PRESERVING = (nn.BatchNorm2d, nn.ReLU, nn.LeakyReLU, nn.SiLU, nn.Mish, nn.Sigmoid)


def parameters_and_gflops(build: Callable[[], nn.Module], size: tuple[int, int]) -> tuple[int, float]:
    """Count the parameters and the GFLOPs per image, without computing outputs or drawing random numbers.

    Args:
        build: function that builds the network.
        size: (height, width) of the input in pixels.

    Returns:
        The number of parameters, and the operations in 10⁹: two per multiply-accumulate of a convolution or a
        matrix product.
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
    """Count each convolution's output values for one image, without computing or drawing random numbers.

    Args:
        build: function that builds the network.
        size: (height, width) of the input in pixels.
    """
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
"""A layer's name, type, output shape for one image, and number of parameters (0 if it is used again)."""


def layers(build: Callable[[], nn.Module], size: tuple[int, int]) -> tuple[list[Layer], int]:
    """List the layers of a network in the order of computation, without computing their outputs.

    Args:
        build: function that builds the network.
        size: (height, width) of the input in pixels.

    Returns:
        The layers, and the network's number of parameters.
    """
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
