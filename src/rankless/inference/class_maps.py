"""Where a classifier sees its class: Grad-CAM (Selvaraju et al., 2017) of the network's last feature map."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from rankless.errors import UserError


def class_maps(model: nn.Module, images: Tensor, source: str) -> Tensor:
    """Return how much each place speaks for the likeliest class, (B, h, w), float32 on the CPU.

    The highest place of an image is 1, unless no place speaks for the class.

    Args:
        model: in its evaluation mode.
        images: as the network takes them, (B, 3, H, W); of any mode of inference.
        source: of the weights, for messages.
    """
    torch.clear_autocast_cache()  # weights that were cast in the inference mode have no gradients either
    with torch.inference_mode(False), torch.enable_grad():
        copies = images.clone().requires_grad_()  # a tensor of the inference mode has no gradients
        with _last_map(model, copies) as found:
            best = model(copies).float().amax(1).sum()
        if not found:
            raise UserError(
                f"--save has heatmaps, but the network in {source} ends in no feature map, which they are "
                "made of; expected a convolutional classifier; leave heatmaps out"
            )
        (slope,) = torch.autograd.grad(best, found[0])
    weights = slope.float().mean((2, 3), keepdim=True)
    maps = (weights * found[0].detach().float()).sum(1).clamp(min=0)
    highest = maps.amax((1, 2), keepdim=True)
    return (maps / highest.where(highest > 0, 1.0)).cpu()


@contextmanager
def _last_map(model: nn.Module, images: Tensor) -> Iterator[list[Tensor]]:
    """Inside, the last output of a module that lies over the image is used; none if tokens follow it."""
    found: list[Tensor] = []
    height, width = images.shape[-2:]

    def keep(_: nn.Module, __: object, output: object) -> None:
        if not isinstance(output, Tensor) or not output.requires_grad:
            return
        if output.dim() == 3:
            found.clear()
        if output.dim() == 4 and min(output.shape[-2:]) > 1:
            # Of the input's shape: what has its channels last has not.
            rows, columns = output.shape[-2:]
            if abs(rows * width - columns * height) <= width + height:
                found[:] = [output]

    with ExitStack() as hooks:
        for module in model.modules():
            hooks.callback(module.register_forward_hook(keep).remove)
        yield found
