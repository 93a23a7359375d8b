"""A model that needs no training: it finds bright rectangles, one for each color channel, wherever they are.

It reads the image and nothing else, so what it finds in a mirrored or smaller image, or on an input of
another size, is the rectangle's place there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rankless.models.detectors.convolutional import DetectionModel
from rankless.models.heads.yolo.codec import YoloHead

GRAY, BRIGHT = 114, 255
_EDGE = (GRAY + BRIGHT) / 2 / 255  # a resized edge is blurred about it
Box = tuple[float, float, float, float]


def painted(height: int, width: int, boxes: dict[int, tuple[int, int, int, int]]) -> Tensor:
    """A gray image, uint8 (3, H, W), with a rectangle xyxy in each of the given channels."""
    image = torch.full((3, height, width), GRAY, dtype=torch.uint8)
    for channel, (x1, y1, x2, y2) in boxes.items():
        image[channel, y1:y2, x1:x2] = BRIGHT
    return image


class Finds(nn.Module):
    """Finds the rectangles that ``sees`` lets it see, with a score of 0.81.

    Args:
        heads: of the task; each rectangle is reported by the head that owns the best anchor.
        sees: of a box xyxy in pixels of the input, and the input's width.
        criterion: the loss of its outputs, where one is asked for.
    """

    def __init__(
        self,
        heads: tuple[YoloHead, ...],
        sees: Callable[[Box, int], bool] = lambda box, width: True,
        criterion: Any = None,
    ) -> None:
        super().__init__()
        self.heads, self.sees = heads, sees
        self.criterion = criterion
        self.inputs: list[tuple[int, int]] = []

    decode, loss = DetectionModel.decode, DetectionModel.loss

    def forward(self, images: Tensor) -> list[Tensor]:
        count, _, height, width = images.shape
        self.inputs.append((height, width))
        outputs = [
            torch.full((count, len(head.mask), 8, height // head.stride, width // head.stride), -20.0)
            for head in self.heads
        ]
        for sample, channel in ((p, c) for p in range(count) for c in range(3)):
            rows, columns = (images[sample, channel] > _EDGE).nonzero(as_tuple=True)
            if len(rows):
                box = (float(columns.min()), float(rows.min()), columns.max() + 1.0, rows.max() + 1.0)
                if self.sees(box, width):
                    self._tell(outputs, sample, channel, *map(float, box))
        return [each.flatten(1, 2) for each in outputs]

    def _tell(
        self, outputs: list[Tensor], sample: int, label: int, x1: float, y1: float, x2: float, y2: float
    ) -> None:
        w, h = x2 - x1, y2 - y1

        def likeness(anchor: tuple[float, float]) -> float:
            both = min(w, anchor[0]) * min(h, anchor[1])
            return both / (w * h + anchor[0] * anchor[1] - both)

        anchors = self.heads[0].anchors
        best = max(range(len(anchors)), key=lambda number: likeness(anchors[number]))
        for head, raw in zip(self.heads, outputs, strict=True):
            if best in head.mask:
                cx, cy = (x1 + x2) / 2 / head.stride, (y1 + y2) / 2 / head.stride
                pw, ph = anchors[best]
                numbers = [logit(cx % 1), logit(cy % 1), math.log(w / pw), math.log(h / ph), logit(0.9)]
                cell = raw[sample, head.mask.index(best), :, int(cy), int(cx)]
                cell[:] = torch.tensor([*numbers, *(logit(0.9 if c == label else 1e-6) for c in range(3))])


def logit(p: float) -> float:
    return math.log(p / (1 - p))
