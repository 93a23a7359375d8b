"""The YOLOv3 and YOLOv4 losses as in Darknet, summed over the images of a micro-batch.

A loss is the sum of a box term, the objectness in all slots except ignored negatives, and the binary
cross-entropies of the classes in positive slots. The two losses differ in the box term and in the negatives
that they ignore. Both ignore negatives whose predicted box is in a region to ignore. They are computed in
float32, regardless of the network's precision.

For heads with ``new_coords``, objectness and classes are also cross-entropies, as in the original code of
Scaled-YOLOv4 (Wang, Bochkovskiy and Liao, 2021). Darknet propagates the same differences through σ, so its
losses are half the squared errors of the probabilities.

Sources: YOLOv3 (Redmon and Farhadi, 2018), YOLOv4 (Bochkovskiy, Wang and Liao, 2020), Darknet's yolo_layer.c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rankless.errors import UserError
from rankless.geometry.boxes import SIMILARITIES, iou
from rankless.losses.logits import cross_entropy, focal, quality_focal
from rankless.models.heads.truths import Truths, best_overlap, boxes_in_ignored
from rankless.models.heads.yolo.assign import Matches, assign, class_targets, slot_values
from rankless.models.heads.yolo.codec import BoxLoss, HeadLoss, YoloHead, decode_boxes, place_all, predictions
from rankless.recipe import loss_kinds
from rankless.structures import DetectionBatch, LossSum

Name = Literal["yolov3", "yolov4"]
Objectness = Literal["bce", "smooth", "focal", "quality-focal"]
Options = loss_kinds.Yolov3Loss | loss_kinds.Yolov4Loss | loss_kinds.CfgLoss

# YOLOv4 ignores an overlapping negative only if its best class probability exceeds this.
CONFIDENT_CLASS = 0.25
# YOLOv4 clips the gradient with respect to a raw box to this value.
LARGEST_BOX_GRADIENT = 5.0
_PARTS = ("box", "objectness", "classes")
_BOX_LOSS: dict[Name, BoxLoss] = {"yolov3": "mse", "yolov4": "ciou"}


class Settings(NamedTuple):
    """The resolved loss parameters of one head; see :class:`YoloLoss` and :class:`HeadLoss`."""

    box: float
    objectness: float
    classes: float
    ignore: float
    smoothing: float
    box_loss: BoxLoss
    objectness_loss: Objectness
    largest_gradient: float


@dataclass(frozen=True)
class YoloLoss:
    """A YOLO loss function.

    Options that are ``auto`` take the value of the head, or the published value if the head has none. The
    values of the heads apply only to the ``published`` loss. With ``quality-focal``, the target of a positive
    is the highest IoU with its ground-truth boxes.
    """

    options: Options
    published: Name

    @property
    def name(self) -> Name:
        """The name of the recipe's loss, or of the published loss if the recipe's loss is ``cfg``."""
        return self.published if self.options.name == "cfg" else self.options.name

    def __call__(self, raw: Sequence[Tensor], heads: Sequence[YoloHead], batch: DetectionBatch) -> LossSum:
        """Compute the loss of one micro-batch.

        Args:
            raw: the outputs of the model, one (B, A * (5 + C), H, W) per head.
            heads: the heads in the same order.
            batch: the targets; its images are not read.

        Returns:
            The sum over the images, the number of images, and the parts ``box``, ``objectness`` and
            ``classes``, which add up to the sum. Models with several heads also have the parts of each head,
            such as ``P3/box``.
        """
        sums = [self._head(one, head, batch) for one, head in zip(raw, heads, strict=True)]
        box, objectness, classes = (torch.stack(part).sum() for part in zip(*sums, strict=True))
        parts = dict(zip(_PARTS, (box, objectness, classes), strict=True))
        if len(heads) > 1:
            for level, of_head in zip(_levels(heads), sums, strict=True):
                parts |= {f"{level}/{name}": part for name, part in zip(_PARTS, of_head, strict=True)}
        return LossSum(
            sum=box + objectness + classes,
            count=box.new_full((), batch.boxes.shape[0]),
            parts={name: part.detach() for name, part in parts.items()},
        )

    def settings(self, head: YoloHead) -> Settings:
        """Resolve the loss parameters of one head."""
        of_head = head.loss if self.name == self.published else HeadLoss()
        options = self.options
        published = of_head.box_loss or _BOX_LOSS[self.name]
        box_loss = published if options.box_loss == "auto" else options.box_loss
        if (box_loss == "mse") != (published == "mse"):
            # The published factor belongs to a box term with a different scale.
            of_head = replace(of_head, box=None)
        objectness: Objectness = "smooth" if of_head.smooth_objectness else "bce"
        return Settings(
            box=_first(options.box, of_head.box, 1.0 if box_loss == "mse" else 0.07),
            objectness=_first(options.objectness, of_head.objectness, 1.0),
            classes=_first(options.classes, of_head.classes, 1.0),
            ignore=_first(options.ignore, of_head.ignore, 0.7),
            smoothing=_first(options.smoothing, of_head.smoothing, 0.0),
            box_loss=box_loss,
            objectness_loss=objectness if options.objectness_loss == "auto" else options.objectness_loss,
            largest_gradient=_first(of_head.largest_gradient, LARGEST_BOX_GRADIENT),
        )

    def _head(self, raw: Tensor, head: YoloHead, batch: DetectionBatch) -> tuple[Tensor, Tensor, Tensor]:
        settings = self.settings(head)
        cells = predictions(raw, head)  # (B, A, H, W, 5 + C)
        with torch.no_grad():
            truths = Truths.of(batch.boxes, batch.labels, batch.valid, cells.dtype)
            matches = assign(truths, head, (raw.shape[-2], raw.shape[-1]), self._anchor_iou)
            wanted = class_targets(truths, matches, cells.shape[-1] - 5).to(cells.dtype)
            wanted = wanted * (1 - settings.smoothing) + settings.smoothing / 2
        matched = cells[matches.slots]  # (B, T, A, 5 + C)
        # Each slot is counted once, with the classes of all its ground-truth boxes.
        classes = cross_entropy(matched[..., 5:], wanted).sum(-1)
        return (
            self._box(matched[..., :4], head, truths, matches, settings),
            settings.objectness
            * self._objectness(cells, matched, head, truths, batch.ignored, matches, settings),
            settings.classes * torch.where(matches.last, classes, 0).sum(),
        )

    @property
    def _anchor_iou(self) -> float | None:
        if self.name == "yolov3" or isinstance(self.options, loss_kinds.Yolov3Loss):
            return 1.0
        return None if self.options.anchor_iou == "auto" else self.options.anchor_iou

    def _box(
        self, offsets: Tensor, head: YoloHead, truths: Truths, matches: Matches, settings: Settings
    ) -> Tensor:
        """Compute the box term. If objects share a slot, YOLOv3 counts only the last one, and YOLOv4 all."""
        counted = matches.last if self.name == "yolov3" else matches.hit
        if settings.box_loss == "mse":
            return settings.box * squared_error(offsets, head, truths, matches, counted)
        return dissimilarity(
            offsets,
            head,
            truths,
            matches,
            counted,
            SIMILARITIES[settings.box_loss],
            factor=settings.box,
            largest=settings.largest_gradient,
        )

    def _objectness(
        self,
        cells: Tensor,
        matched: Tensor,
        head: YoloHead,
        truths: Truths,
        ignored: Tensor | None,
        matches: Matches,
        settings: Settings,
    ) -> Tensor:
        logits, positive = cells[..., 4], matches.positive
        smooth = settings.objectness_loss == "smooth"
        with torch.no_grad():
            boxes = place_all(cells, head).flatten(1, 3)  # (B, P, 4)
            overlap, near = self._near(cells, boxes, truths, settings.ignore)
            counted = torch.ones_like(near) if smooth else positive | ~near
            if ignored is not None:
                counted = counted & (positive | ~boxes_in_ignored(boxes, ignored).view_as(near))
        alpha = None if self.options.alpha == "none" else self.options.alpha
        if smooth:
            # With Darknet's objectness_smooth, the target is the overlap, also in positive slots.
            loss = cross_entropy(logits, torch.where(near, overlap, 0))
        elif settings.objectness_loss == "focal":
            loss = focal(logits, positive, self.options.gamma, alpha)
        elif settings.objectness_loss == "quality-focal":
            with torch.no_grad():
                quality = slot_values(
                    iou(placed(matched[..., :4], head, matches), truths.solid.unsqueeze(2)), matches
                )
            loss = quality_focal(logits, quality, positive, self.options.gamma, alpha)
        else:
            loss = cross_entropy(logits, positive.to(cells.dtype))
        return torch.where(counted, loss, 0).sum()

    def _near(self, cells: Tensor, boxes: Tensor, truths: Truths, threshold: float) -> tuple[Tensor, Tensor]:
        """Return each prediction's best IoU and whether to ignore it as a negative, both (B, A, H, W)."""
        overlap = best_overlap(boxes, truths.boxes).view(cells.shape[:-1])
        near = overlap > threshold
        if self.name == "yolov4":
            near = near & (cells[..., 5:].amax(-1).sigmoid() > CONFIDENT_CLASS)
        return overlap, near


def _levels(heads: Sequence[YoloHead]) -> list[str]:
    """Return the levels of the heads, such as P3 for stride 8, or numbers if heads share a level."""
    levels = [f"P{head.stride.bit_length() - 1}" for head in heads]
    return levels if len(set(levels)) == len(levels) else [f"head{n}" for n in range(1, len(levels) + 1)]


def _first(*values: float | Literal["auto"] | None) -> float:
    return next(value for value in values if value is not None and value != "auto")


def from_recipe(options: Options, published: Name) -> YoloLoss:
    """Return a recipe's loss function for a model with the given published loss."""
    of_yolov4 = isinstance(options, loss_kinds.CfgLoss) and options.anchor_iou not in ("auto", 1.0)
    if of_yolov4 and published == "yolov3":
        raise UserError(
            "key 'loss.anchor_iou': the cfg file's loss is yolov3, which does not have this key; remove "
            "loss.anchor_iou, or set loss.name to yolov4"
        )
    return YoloLoss(options, published)


# In the box terms, ``offsets`` are the raw predictions in the slots, (B, T, A, 4), and ``counted`` is a mask
# of the matches to sum over, (B, T, A).


def squared_error(
    offsets: Tensor, head: YoloHead, truths: Truths, matches: Matches, counted: Tensor
) -> Tensor:
    """Compute Σ (2 - w·h) · (BCE of x and y + ½ squared error of tw and th), with normalized w and h.

    With ``new_coords``, the error of the size is also a cross-entropy. In both cases, the gradient with
    respect to an offset is the difference from its target.
    """
    height, width = matches.positive.shape[-2:]
    with torch.no_grad():
        cell = torch.stack((matches.columns, matches.rows), -1)
        within = truths.center / head.stride - cell  # (B, T, 2) in 0..1
        # The σ that decodes to the target center. With scale_xy=1, it equals `within`.
        sigma = ((within + (head.scale_xy - 1) / 2) / head.scale_xy).clamp(0, 1).unsqueeze(2)
        ratio = truths.size.unsqueeze(2) / head.own_anchors(offsets)  # (B, T, A, 2)
        area = truths.size.prod(-1) / (height * width * head.stride**2)
        weight = (2 - area).unsqueeze(-1)  # (B, T, 1)
    xy = cross_entropy(offsets[..., :2], sigma.expand_as(ratio)).sum(-1)
    if head.new_coords:
        wh = cross_entropy(offsets[..., 2:], (ratio.sqrt() / 2).clamp(0, 1)).sum(-1)
    else:
        wh = (offsets[..., 2:] - ratio.log()).square().sum(-1) / 2
    return torch.where(counted, weight * (xy + wh), 0).sum()


def dissimilarity(
    offsets: Tensor,
    head: YoloHead,
    truths: Truths,
    matches: Matches,
    counted: Tensor,
    similarity: Callable[[Tensor, Tensor], Tensor],
    *,
    factor: float,
    largest: float,
) -> Tensor:
    """Compute factor · Σ (1 - similarity of the decoded and the ground-truth box), with clipped gradients.

    ``factor`` is Darknet's ``iou_normalizer``, which is applied before clipping. ``largest`` is Darknet's
    ``max_delta``, the limit of each element of the gradient.
    """
    wanted = truths.solid.unsqueeze(2)  # (B, T, 1, 4)

    def loss(leaf: Tensor) -> Tensor:
        boxes = placed(leaf, head, matches)
        return factor * torch.where(counted, 1 - similarity(boxes, wanted), 0).sum()

    return clipped(loss, offsets, largest)


def placed(offsets: Tensor, head: YoloHead, matches: Matches) -> Tensor:
    """Decode the raw predictions in the slots (B, T, A, 4) to boxes, xyxy in input pixels."""
    columns, rows = matches.columns.unsqueeze(-1), matches.rows.unsqueeze(-1)
    return decode_boxes(offsets, columns, rows, head.own_anchors(offsets), head)


def clipped(function: Callable[[Tensor], Tensor], x: Tensor, limit: float) -> Tensor:
    """Compute the scalar ``function(x)``, and clip its gradient with respect to ``x`` to ±limit.

    Elements of the gradient that are not finite become 0. Multiplying the result scales the clipped gradient.
    """
    if not (x.requires_grad and torch.is_grad_enabled()):
        return function(x)
    result: Tensor = _Clipped.apply(x, function, limit)
    return result


class _Clipped(torch.autograd.Function):
    """A function whose gradient is computed and clipped in the forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor], limit: float) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            result = function(leaf)
            (gradient,) = torch.autograd.grad(result, leaf)
        ctx.save_for_backward(gradient.nan_to_num(0.0, 0.0, 0.0).clamp(-limit, limit))
        return result.detach()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return outer[0] * gradient, None, None
