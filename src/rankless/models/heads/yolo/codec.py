"""Decode the outputs of YOLO heads to boxes in pixels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from rankless.geometry.boxes import to_xyxy
from rankless.models.layers import LARGEST_LOG_SIZE, constant, wide
from rankless.recipe.loss_kinds import BoxSimilarity

BoxLoss = Literal["mse", BoxSimilarity]


@dataclass(frozen=True)
class HeadLoss:
    """The published loss parameters of one head. None means the default of the loss.

    Attributes:
        box, objectness, classes: factors on the parts of the loss (Darknet's ``iou_normalizer``,
            ``obj_normalizer`` and ``cls_normalizer``).
        ignore: IoU with a ground-truth box above which a negative may be ignored (``ignore_thresh``).
        box_loss: how a box is compared with the ground truth (``iou_loss``).
        smoothing: label smoothing ε of the classes (``label_smooth_eps``).
        largest_gradient: limit of the gradient with respect to a raw box, for losses based on IoU; infinity
            for no limit (``max_delta``).
        smooth_objectness: whether the objectness target is the IoU in slots that would be ignored as
            negatives, and 0 in all others (``objectness_smooth``).
    """

    box: float | None = None
    objectness: float | None = None
    classes: float | None = None
    ignore: float | None = None
    box_loss: BoxLoss | None = None
    smoothing: float | None = None
    largest_gradient: float | None = None
    smooth_objectness: bool = False


@dataclass(frozen=True)
class YoloHead:
    """A YOLO head, as a Darknet cfg file describes it.

    Attributes:
        anchors: (width, height) of all heads' anchors in pixels, regardless of the input size, as in Darknet.
        mask: indices of this head's anchors, in the order of its channels.
        stride: pixels of the input per cell.
        scale_xy: Darknet's ``scale_x_y``, which lets centers reach the border of their cell.
        new_coords: whether width and height are ``(2σ(t))²`` instead of ``exp(t)`` times those of the anchor.
        anchor_iou: Darknet's ``iou_thresh``. Anchors whose IoU with the shape of a ground-truth box exceeds
            it are also positive; 1 leaves only the best anchor of all heads.
        loss: published loss parameters of this head.
    """

    anchors: tuple[tuple[float, float], ...]
    mask: tuple[int, ...]
    stride: int
    scale_xy: float = 1.0
    new_coords: bool = False
    anchor_iou: float = 1.0
    loss: HeadLoss = field(default_factory=HeadLoss)

    def own_anchors(self, like: Tensor) -> Tensor:
        """Return the anchors (A, 2) of this head in pixels, with the dtype and device of ``like``."""
        return constant([self.anchors[number] for number in self.mask], like)

    def all_anchors(self, like: Tensor) -> Tensor:
        """Return the anchors (N, 2) of all heads in pixels, with the dtype and device of ``like``."""
        return constant(self.anchors, like)

    def detections(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Decode a raw output to boxes (B, P, 4), xyxy in input pixels, and scores (B, P, C).

        A score is objectness times class probability.
        """
        boxes, objectness, classes = decode(raw, self)
        scores = objectness.sigmoid().unsqueeze(-1) * classes.sigmoid()
        return boxes.flatten(1, 3), scores.flatten(1, 3)


def predictions(raw: Tensor, head: YoloHead) -> Tensor:
    """Rearrange the output of a head to (B, A, H, W, 5 + C), in float32 unless it is float64.

    The last dimension contains tx, ty, tw, th, the objectness logit and the class logits.
    """
    batch, _, height, width = raw.shape
    return wide(raw).view(batch, len(head.mask), -1, height, width).permute(0, 1, 3, 4, 2)


def decode_boxes(offsets: Tensor, columns: Tensor, rows: Tensor, anchors: Tensor, head: YoloHead) -> Tensor:
    """Decode boxes to pixels: center = (cell + s·σ(t) - (s - 1)/2)·stride, size = exp(t)·anchor.

    The argument of ``exp`` is clamped to ``LARGEST_LOG_SIZE``. With ``new_coords``, the size is
    ``(2σ(t))²·anchor``. Sources: YOLOv3 (Redmon and Farhadi, 2018), YOLOv4 and Scaled-YOLOv4 (Bochkovskiy,
    Wang and Liao, 2020).

    Args:
        offsets: tx, ty, tw, th, (..., 4).
        columns, rows: indices of the cells, (...).
        anchors: width and height in pixels, (..., 2).

    Returns:
        Boxes (..., 4), xyxy in input pixels.
    """
    within = head.scale_xy * offsets[..., :2].sigmoid() - (head.scale_xy - 1) / 2
    if head.new_coords:
        factor = (2 * offsets[..., 2:4].sigmoid()).square()
    else:
        factor = offsets[..., 2:4].clamp(max=LARGEST_LOG_SIZE).exp()
    x = (columns + within[..., 0]) * head.stride
    y = (rows + within[..., 1]) * head.stride
    size = factor * anchors
    return to_xyxy(torch.stack((x, y, size[..., 0], size[..., 1]), -1))


def place_all(cells: Tensor, head: YoloHead) -> Tensor:
    """Decode the :func:`predictions` (B, A, H, W, 5 + C) to boxes (B, A, H, W, 4), xyxy in input pixels."""
    _, count, height, width, _ = cells.shape
    columns = torch.arange(width, dtype=cells.dtype, device=cells.device)
    rows = torch.arange(height, dtype=cells.dtype, device=cells.device).unsqueeze(-1)
    anchors = head.own_anchors(cells).view(count, 1, 1, 2)
    return decode_boxes(cells[..., :4], columns, rows, anchors, head)


def decode(raw: Tensor, head: YoloHead) -> tuple[Tensor, Tensor, Tensor]:
    """Decode the output of a head to boxes, objectness logits and class logits.

    Returns:
        Boxes (B, A, H, W, 4), xyxy in input pixels, not clipped; objectness logits (B, A, H, W); class logits
        (B, A, H, W, C).
    """
    cells = predictions(raw, head)
    return place_all(cells, head), cells[..., 4], cells[..., 5:]
