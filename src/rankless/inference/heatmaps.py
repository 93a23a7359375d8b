"""Compute the heat maps of detectors, and draw heat maps over images.

The heat map of a detector shows, in each cell, the highest score of the candidate boxes centered there,
before any box is discarded.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rankless.data.images.image_file import Pixels
from rankless.geometry.letterbox import to_source
from rankless.structures import Letterbox

CELL = 8
"""Width and height of a cell in input pixels, which is the finest stride of the heads."""
# RGB at equal distances, close to Matplotlib's inferno.
_COLORS = ((0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164))


def heat(boxes: Tensor, scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the highest score in each cell, float32 (H / 8, W / 8), on the CPU.

    ``boxes`` are candidates, xyxy in input pixels, (P, 4). ``scores`` are their highest scores among the
    selected classes, in 0..1, (P,). ``size`` is the (H, W) of the input in pixels.
    """
    rows, columns = size[0] // CELL, size[1] // CELL
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2 / CELL
    x, y = centers[:, 0].long().clamp(0, columns - 1), centers[:, 1].long().clamp(0, rows - 1)
    flat = torch.zeros(rows * columns, dtype=torch.float32, device=scores.device)
    flat = flat.scatter_reduce(0, y * columns + x, scores.float(), "amax")
    return flat.view(rows, columns).cpu()


def in_image(heat: Tensor, letterbox: Letterbox, size: tuple[int, int]) -> Pixels:
    """Resample a heat map of the input, (h, w) in 0..1, to the pixels of the image, uint8 (H, W).

    ``size`` is the (H, W) of the input in pixels.
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
    """Draw a heat map (H, W) over a darkened image (H, W, 3). Value 0 is dark, and 255 is yellow."""
    levels, stops = np.arange(256), np.linspace(0, 255, len(_COLORS))
    ramps = [np.interp(levels, stops, channel) for channel in zip(*_COLORS, strict=True)]
    table = np.stack(ramps, 1).round().astype(np.float32)  # (256, 3)
    opacity = (0.25 + 0.6 * np.sqrt(levels / 255)).astype(np.float32)
    part = opacity[level][..., None]
    mixed = image.astype(np.float32) * (1 - part) + table[level] * part
    return Image.fromarray(mixed.round().astype(np.uint8))
