"""Check in advance that a step or an image fits into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from rankless.errors import counted
from rankless.hardware import memory
from rankless.recipe.schema import Recipe


def refuse_giant_step(recipe: Recipe, size: tuple[int, int], outputs: Sequence[int] = ()) -> None:
    """Raise an error if even a lower bound on a micro-batch's memory exceeds the available memory.

    ``size`` is the input's (height, width) in pixels. ``outputs`` lists how many values per image each layer
    stores for the gradient, if known.
    """
    micro, (height, width) = recipe.batch.micro, size
    number = 4 if recipe.precision == "fp32" else 2  # bytes
    saved = 0 if recipe.model.freeze else sum(outputs)  # a frozen backbone stores nothing
    remedy = "use a smaller batch.micro or model.image_size"
    if recipe.model.checkpointing:  # blocks keep different amounts of memory
        saved = max(outputs, default=0)
    else:
        remedy += ", or model.checkpointing=true"
    memory.ensure(
        micro * (3 * height * width * 4 + saved * number),
        f"a micro-batch of {counted(micro, 'image')} of {width:,} × {height:,} pixels",
        remedy,
        _on_a_card(),
    )


def refuse_giant_image(size: tuple[int, int], source: str, outputs: Sequence[int] = ()) -> None:
    """Raise an error if even a lower bound on the memory for one image exceeds the available memory.

    ``size`` is the input's (height, width) in pixels. ``outputs`` lists how many values per image each layer
    computes, if known. The error message names ``source``, the weights file.
    """
    height, width = size
    memory.ensure(
        4 * (3 * height * width + max(outputs, default=0)),
        f"{source}: an image of {width:,} × {height:,} pixels, the size in its recipe,",
        "use weights with a smaller model.image_size",
        _on_a_card(),
    )


def _on_a_card() -> int | None:
    """Return the memory of the first GPU in bytes, or None on the CPU."""
    if os.environ.get("RANKLESS_CPU") or not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(0).total_memory)
