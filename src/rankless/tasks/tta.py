"""Test-time augmentation: transforms of the inputs, and the inverse transforms of boxes.

The result for an image does not depend on other images, so it is the same in any batch and on any rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rankless.data.augment.multi_scale import STRIDE
from rankless.geometry.letterbox import USUAL, Placing


class Transform(NamedTuple):
    """A transform of the network's input: a scaling and an optional horizontal flip."""

    scale: float
    mirrored: bool


TTA: dict[str, tuple[Transform, ...]] = {
    "none": (Transform(1.0, False),),
    "flip": (Transform(1.0, False), Transform(1.0, True)),
    # The scales are those of YOLOv5's `--augment`.
    "full": tuple(Transform(scale, mirrored) for scale in (1.0, 0.83, 0.67) for mirrored in (False, True)),
}
"""The transforms for each value of ``evaluate.tta``. The first one is the identity."""


def apply_transform(images: Tensor, transform: Transform, placing: Placing = USUAL) -> Tensor:
    """Apply a transform to inputs, float 0..1 (B, 3, H, W), and return the result in channels_last format.

    Mirroring precedes scaling. A smaller image is placed in the upper left corner and padded with gray to
    multiples of 32. For the identity, the result is ``images`` itself.
    """
    if transform.mirrored:
        images = images.flip(-1)
    if transform.scale != 1:
        rows, columns = _smaller(images.shape[-2:], transform)
        smaller = (rows, columns)
        images = F.interpolate(images, size=smaller, mode="bilinear", antialias=placing.antialias)
        margins = (0, -columns % STRIDE, 0, -rows % STRIDE)
        images = F.pad(images, margins, value=placing.gray / 255)
    return images.contiguous(memory_format=torch.channels_last)


def restore_boxes(boxes: Tensor, transform: Transform, size: Sequence[int]) -> Tensor:
    """Convert xyxy boxes (..., 4) from a transformed input to the original input of ``size``, (H, W)."""
    if transform.scale != 1:
        rows, columns = _smaller(size, transform)
        factors = boxes.new_tensor([size[1] / columns, size[0] / rows])
        boxes = boxes * factors.repeat(2)
    if transform.mirrored:
        x1, y1, x2, y2 = boxes.unbind(-1)
        boxes = torch.stack((size[1] - x2, y1, size[1] - x1, y2), -1)
    return boxes


def mean_of_logs(logs: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean probabilities, (B, C), given log probabilities, each (B, C)."""
    stacked = torch.stack(list(logs))
    count = torch.tensor(float(len(logs)), dtype=stacked.dtype)
    return stacked.logsumexp(0) - count.log().item()


def _smaller(size: Sequence[int], transform: Transform) -> tuple[int, int]:
    rows, columns = (max(1, round(side * transform.scale)) for side in size)
    return rows, columns
