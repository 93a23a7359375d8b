"""The YOLOv3 and YOLOv4 losses as Darknet computes them, summed over the pictures of a micro-batch.

Both count every cell's objectness, leave out negatives that overlap a truth well, and sum binary
cross-entropies over the classes of the slots that answer for truths. They differ in the box term and in which
negatives are left out. All is computed in float32, whatever the precision of the network.

Sources: YOLOv3 (Redmon and Farhadi, 2018), YOLOv4 (Bochkovskiy, Wang and Liao, 2020), Darknet's yolo_layer.c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rankless import recipe
from rankless.boxes import ciou
from rankless.errors import UserError
from rankless.losses.assign import Matches, Truths, assign, best_overlap, class_targets
from rankless.types import DetectionBatch, LossSum
from rankless.yolo_grid import YoloHead, place, place_all, predictions

# YOLOv4 leaves out a negative that overlaps a truth only if it also believes in some class by more than this.
SURE_CLASS = 0.25
# YOLOv4 cuts each truth's gradient on the raw box at this.
LARGEST_BOX_GRADIENT = 5.0


@dataclass(frozen=True)
class YoloLoss:
    """Which loss, and its numbers. The defaults of the fields that follow ``name`` are YOLOv3's.

    Attributes:
        name: ``yolov3`` or ``yolov4``.
        box, objectness, classes: factors on the parts.
        ignore: a negative that overlaps any truth by more than this IoU may be left out.
        anchor_iou: anchors of like shape that are positive beside the best; None takes the heads' own.
        smoothing: label smoothing ε of the classes: y (1 - ε) + ε / 2.
    """

    name: Literal["yolov3", "yolov4"]
    box: float = 1.0
    objectness: float = 1.0
    classes: float = 1.0
    ignore: float = 0.7
    anchor_iou: float | None = None
    smoothing: float = 0.0

    def __call__(self, raw: Sequence[Tensor], heads: Sequence[YoloHead], batch: DetectionBatch) -> LossSum:
        """The loss of one micro-batch.

        Args:
            raw: the model's outputs, one (B, A * (5 + C), H, W) per head.
            heads: what they mean, in the same order.
            batch: the targets; its images are not read.

        Returns:
            The sum over the pictures, the number of pictures, and the parts ``box``, ``objectness`` and
            ``classes``, which add up to the sum.
        """
        sums = [self._head(one, head, batch) for one, head in zip(raw, heads, strict=True)]
        box, objectness, classes = (torch.stack(part).sum() for part in zip(*sums, strict=True))
        return LossSum(
            sum=box + objectness + classes,
            count=box.new_full((), batch.boxes.shape[0]),
            parts={"box": box.detach(), "objectness": objectness.detach(), "classes": classes.detach()},
        )

    def _head(self, raw: Tensor, head: YoloHead, batch: DetectionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The three parts of one head, each a scalar."""
        cells = predictions(raw, head)  # (B, A, H, W, 5 + C)
        height, width = raw.shape[-2:]
        with torch.no_grad():
            truths = Truths.of(batch.boxes, batch.labels, batch.valid, cells.dtype)
            matches = assign(truths, head, (height, width), self._anchor_iou)
            counts = matches.positive | ~self._ignored(cells, head, truths)
            wanted = class_targets(truths, matches, cells.shape[-1] - 5).to(cells.dtype)
            wanted = wanted * (1 - self.smoothing) + self.smoothing / 2
        objectness = _cross_entropy(cells[..., 4], matches.positive.to(cells.dtype))
        chosen = cells[matches.slots]  # (B, T, A, 5 + C)
        # One truth speaks for each slot; the slot's classes are those of all its truths.
        classes = _cross_entropy(chosen[..., 5:], wanted).sum(-1)
        if self.name == "yolov3":
            box = self.box * _box_yolov3(chosen[..., :4], head, truths, matches, (height, width))
        else:
            box = _box_yolov4(chosen[..., :4], head, truths, matches, self.box)
        return (
            box,
            self.objectness * torch.where(counts, objectness, 0).sum(),
            self.classes * torch.where(matches.last, classes, 0).sum(),
        )

    @property
    def _anchor_iou(self) -> float | None:
        """YOLOv3 knows only the best anchor."""
        return 1.0 if self.name == "yolov3" else self.anchor_iou

    def _ignored(self, cells: Tensor, head: YoloHead, truths: Truths) -> Tensor:
        """Negatives that are left out: (B, A, H, W) bool."""
        boxes = place_all(cells, head).flatten(1, 3)  # (B, P, 4)
        ignored = (best_overlap(boxes, truths) > self.ignore).view(cells.shape[:-1])
        if self.name == "yolov4":
            ignored = ignored & (cells[..., 5:].amax(-1).sigmoid() > SURE_CLASS)
        return ignored


_BOX_FACTOR: dict[Literal["yolov3", "yolov4"], float] = {"yolov3": 1.0, "yolov4": 0.07}


def from_recipe(loss: recipe.Loss, published: Literal["yolov3", "yolov4"]) -> YoloLoss:
    """The recipe's loss; what it leaves open (``auto``) is as the model was published.

    Raises:
        UserError: a choice that the chosen loss does not have.
    """
    if loss.name not in ("auto", "yolov3", "yolov4"):
        raise UserError(f"loss.name is '{loss.name}': expected auto, yolov3 or yolov4 for a YOLO head.")
    name = published if loss.name == "auto" else loss.name
    if name == "yolov3" and loss.anchor_iou not in ("auto", 1.0):
        raise UserError(
            f"loss.anchor_iou is {loss.anchor_iou}, but the yolov3 loss gives a truth to its best anchor "
            "alone: leave it at auto, or choose loss.name yolov4."
        )
    return YoloLoss(
        name=name,
        box=_BOX_FACTOR[name] if loss.box == "auto" else loss.box,
        objectness=1.0 if loss.objectness == "auto" else loss.objectness,
        classes=1.0 if loss.classes == "auto" else loss.classes,
        ignore=0.7 if loss.ignore == "auto" else loss.ignore,
        anchor_iou=None if loss.anchor_iou == "auto" else loss.anchor_iou,
        smoothing=0.0 if loss.smoothing == "auto" else loss.smoothing,
    )


def _cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    """Binary cross-entropy, element by element."""
    return F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")


def _box_yolov3(
    offsets: Tensor, head: YoloHead, truths: Truths, matches: Matches, shape: tuple[int, int]
) -> Tensor:
    """Σ (2 - w·h) · (BCE of x and y + ½ squared error of tw and th), w and h as shares of the input.

    Of truths that share a slot the last one counts.

    Args:
        offsets: (B, T, A, 4) raw predictions of the slots.
        head, truths, matches: of this head.
        shape: its height and width in cells.
    """
    height, width = shape
    with torch.no_grad():
        cell = torch.stack((matches.columns, matches.rows), -1)
        within = truths.centre / head.stride - cell  # (B, T, 2) in 0..1
        # What σ has to be, so that the decoded centre is right; with scale_xy 1 it is `within` itself.
        sigma = ((within + (head.scale_xy - 1) / 2) / head.scale_xy).clamp(0, 1).unsqueeze(2)
        size = (truths.size.unsqueeze(2) / head.own_anchors(offsets)).log()  # (B, T, A, 2)
        share = truths.size.prod(-1) / (height * width * head.stride**2)
        weight = (2 - share).unsqueeze(-1)  # (B, T, 1)
    xy = _cross_entropy(offsets[..., :2], sigma.expand_as(size)).sum(-1)
    wh = (offsets[..., 2:] - size).square().sum(-1) / 2
    return torch.where(matches.last, weight * (xy + wh), 0).sum()


def _box_yolov4(offsets: Tensor, head: YoloHead, truths: Truths, matches: Matches, factor: float) -> Tensor:
    """factor · Σ (1 - CIoU) over every truth's every match, its gradient cut truth by truth.

    Args:
        offsets: (B, T, A, 4) raw predictions of the slots.
        head, truths, matches: of this head.
        factor: Darknet's ``iou_normalizer``; it comes before the cut.
    """
    half = truths.size / 2
    wanted = torch.cat((truths.centre - half, truths.centre + half), -1).unsqueeze(2)  # (B, T, 1, 4)
    columns, rows = matches.columns.unsqueeze(-1), matches.rows.unsqueeze(-1)
    anchors = head.own_anchors(offsets)

    def loss(free: Tensor) -> Tensor:
        found = place(free, columns, rows, anchors, head)
        return factor * torch.where(matches.hit, 1 - ciou(found, wanted), 0).sum()

    return clipped(loss, offsets, LARGEST_BOX_GRADIENT)


def clipped(function: Callable[[Tensor], Tensor], x: Tensor, limit: float) -> Tensor:
    """``function(x)``, a scalar, whose gradient on ``x`` is cut to ±limit, and 0 where it is not finite.

    The cut comes before whatever the result is multiplied with later: scaling the loss scales the gradient.
    """
    if not (x.requires_grad and torch.is_grad_enabled()):
        return function(x)
    result: Tensor = _Clipped.apply(x, function, limit)
    return result


class _Clipped(torch.autograd.Function):
    """Computes the gradient on the way forward, where it is not yet multiplied by anything."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor], limit: float) -> Tensor:
        with torch.enable_grad():
            free = x.detach().requires_grad_()
            result = function(free)
            (gradient,) = torch.autograd.grad(result, free)
        ctx.save_for_backward(gradient.nan_to_num(0.0, 0.0, 0.0).clamp(-limit, limit))
        return result.detach()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return outer[0] * gradient, None, None
