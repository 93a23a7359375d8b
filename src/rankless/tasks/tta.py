"""Test-time augmentation: the same inputs seen mirrored and smaller, and the way back.

Every view is a function of the input alone, so an image has the same views in whatever batch it is, and on
whichever rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rankless.data.augment.multi_scale import STRIDE
from rankless.geometry.letterbox import GRAY


class View(NamedTuple):
    """One way to look at an input.

    Attributes:
        scale: pixels of the view per pixel of the input.
        mirrored: left is right.
    """

    scale: float
    mirrored: bool


VIEWS: dict[str, tuple[View, ...]] = {
    "none": (View(1.0, False),),
    "flip": (View(1.0, False), View(1.0, True)),
    # The scales are those of YOLOv5's `--augment`.
    "full": tuple(View(scale, mirrored) for scale in (1.0, 0.83, 0.67) for mirrored in (False, True)),
}
"""The views of each ``evaluate.tta``, the input itself first."""


def seen(images: Tensor, view: View) -> Tensor:
    """Inputs as the view shows them.

    Args:
        images: float 0..1, (B, 3, H, W).
        view: mirrors first; a smaller image lies in the upper left, with gray beside it up to multiples of
            32.

    Returns:
        (B, 3, h, w), channels_last; of the view that changes nothing ``images`` themselves.
    """
    if view.mirrored:
        images = images.flip(-1)
    if view.scale != 1:
        rows, columns = _smaller(images.shape[-2:], view)
        images = F.interpolate(images, size=(rows, columns), mode="bilinear", antialias=True)
        margins = (0, -columns % STRIDE, 0, -rows % STRIDE)
        images = F.pad(images, margins, value=GRAY / 255)
    return images.contiguous(memory_format=torch.channels_last)


def unseen(boxes: Tensor, view: View, size: Sequence[int]) -> Tensor:
    """Boxes xyxy (…, 4) in pixels of a view, in pixels of the input.

    Args:
        boxes: what was found in the view.
        view: how it was seen.
        size: the input's (H, W) in pixels.
    """
    if view.scale != 1:
        rows, columns = _smaller(size, view)
        factors = boxes.new_tensor([size[1] / columns, size[0] / rows])
        boxes = boxes * factors.repeat(2)
    if view.mirrored:
        x1, y1, x2, y2 = boxes.unbind(-1)
        boxes = torch.stack((size[1] - x2, y1, size[1] - x1, y2), -1)
    return boxes


def mean_of_logs(views: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of probabilities, given by their logarithms: V of (B, C) -> (B, C)."""
    stacked = torch.stack(list(views))
    count = torch.tensor(float(len(views)), dtype=stacked.dtype)
    return stacked.logsumexp(0) - count.log().item()


def _smaller(size: Sequence[int], view: View) -> tuple[int, int]:
    rows, columns = (max(1, round(side * view.scale)) for side in size)
    return rows, columns
