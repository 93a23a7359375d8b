"""Draw heat maps over images: for a detector, the best score in every cell.

A cell's score is the best score of any candidate box centered in it, before any box is discarded. For a
head with objectness, the score is objectness times class probability.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rankless.data.images.image_file import Pixels
from rankless.geometry.letterbox import to_source
from rankless.structures import Letterbox

CELL = 8
"""Width and height of a cell in pixels of the network's input: the finest stride of the heads."""


def heat(boxes: Tensor, scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the best score in each cell, float32 (H / 8, W / 8), on the CPU.

    Args:
        boxes: candidates xyxy in pixels of the input, (P, 4).
        scores: best score of each candidate among the chosen classes, 0..1, (P,).
        size: the input's (H, W).
    """
    rows, columns = size[0] // CELL, size[1] // CELL
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2 / CELL
    x, y = centers[:, 0].long().clamp(0, columns - 1), centers[:, 1].long().clamp(0, rows - 1)
    flat = torch.zeros(rows * columns, dtype=torch.float32, device=scores.device)
    flat = flat.scatter_reduce(0, y * columns + x, scores.float(), "amax")
    return flat.view(rows, columns).cpu()


def in_image(heat: Tensor, letterbox: Letterbox, size: tuple[int, int]) -> Pixels:
    """Return the heat map resampled to the image's pixels, uint8 (H, W), without the input's margin.

    Args:
        heat: heat map over the input, (h, w), 0..1.
        letterbox: placement of the image on the input.
        size: the input's (H, W).
    """
    corner = to_source(torch.zeros(1, 4), letterbox)[0, :2].tolist()
    far = to_source(torch.tensor([[0.0, 0.0, float(size[1]), float(size[0])]]), letterbox)
    right, bottom = far[0, 2:].tolist()
    across, down = heat.shape[1] / (right - corner[0]), heat.shape[0] / (bottom - corner[1])
    # PIL's affine matrix maps each pixel of the image to its position on the heat map.
    matrix = (across, 0.0, -corner[0] * across, 0.0, down, -corner[1] * down)
    small = Image.fromarray((heat.clamp(0, 1) * 255).round().to(torch.uint8).numpy())
    shown = letterbox.width, letterbox.height
    return np.asarray(small.transform(shown, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR))


def overlaid(image: Pixels, level: Pixels) -> Image.Image:
    """Return the darkened image (H, W, 3) with the heat map (H, W) over it: dark at 0, yellow at 255."""
    from matplotlib import colormaps

    table: Any = (colormaps["inferno"](np.arange(256))[:, :3] * 255).round().astype(np.float32)
    opacity = (0.25 + 0.6 * np.sqrt(np.arange(256) / 255)).astype(np.float32)
    part = opacity[level][..., None]
    mixed = image.astype(np.float32) * (1 - part) + table[level] * part
    return Image.fromarray(mixed.round().astype(np.uint8))
