"""Whether a step of a recipe fits into the memory at all: asked before the ranks start."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from rankless.errors import counted
from rankless.hardware import memory
from rankless.recipe.schema import Recipe


def refuse_giant_step(recipe: Recipe, size: tuple[int, int], outputs: Sequence[int] = ()) -> None:
    """Raise if one micro-batch alone takes more memory than a device has: a bound from below.

    Args:
        recipe: what is to be trained.
        size: the input's (height, width) in pixels.
        outputs: numbers that the layers put out for one image and keep for the gradient, as far as known.

    Raises:
        UserError: says how much it takes, and how much there is.
    """
    micro, (height, width) = recipe.batch.micro, size
    number = 4 if recipe.precision == "fp32" else 2  # bytes
    kept = 0 if recipe.model.freeze else sum(outputs)  # a frozen backbone keeps nothing
    memory.ensure(
        micro * (3 * height * width * 4 + kept * number),
        f"a micro-batch of {counted(micro, 'image')} of {width:,} × {height:,} pixels",
        "give a smaller batch.micro or model.image_size",
        _on_a_card(),
    )


def refuse_giant_image(size: tuple[int, int], source: str, outputs: Sequence[int] = ()) -> None:
    """Raise if one image alone, as the network gets it, takes more memory than a device has.

    Args:
        size: the input's (height, width) in pixels.
        source: the weights file, whose recipe says so.
        outputs: numbers that each layer puts out for one image, as far as known.

    Raises:
        UserError: says how much it takes, and how much there is.
    """
    height, width = size
    memory.ensure(
        4 * (3 * height * width + max(outputs, default=0)),
        f"{source}: an image of {width:,} × {height:,} pixels, which its recipe asks for,",
        "take the weights of a smaller model.image_size",
        _on_a_card(),
    )


def _on_a_card() -> int | None:
    """Bytes of the first GPU; None where the CPU computes."""
    if os.environ.get("RANKLESS_CPU") or not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(0).total_memory)
