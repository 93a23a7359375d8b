"""How large a network is and how much it computes, measured on one without memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

# They keep shapes and are not counted, but take nearly all the time: on the meta device each is dozens of
# small operations in Python.
_SHAPES_ONLY = (nn.BatchNorm2d, nn.ReLU, nn.LeakyReLU, nn.SiLU, nn.Mish, nn.Sigmoid)


def parameters_and_gflops(build: Callable[[], nn.Module], size: tuple[int, int]) -> tuple[int, float]:
    """Parameters that are trained, and GFLOPs of one image; nothing is computed, and no random number drawn.

    Args:
        build: builds the network.
        size: height and width of its input in pixels.

    Returns:
        The number of parameters, and 10⁹ operations: two for each multiply-accumulate of a convolution or a
        matrix product.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = build().eval()
    parameters = sum(p.numel() for p in model.parameters())
    for module in model.modules():
        if type(module) in _SHAPES_ONLY:
            module.forward = _unchanged
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(1, 3, *size, device="meta"))
    return parameters, counter.get_total_flops() / 1e9


def _unchanged(x: Tensor) -> Tensor:
    return x
