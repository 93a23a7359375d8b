"""The losses of YOLO's heads once more, literally: images, cells and truths one after another, in floats."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rankless.models.heads.truths import SMALLEST_SIDE
from rankless.models.heads.yolo.codec import YoloHead
from rankless.models.heads.yolo.loss import YoloLoss
from rankless.recipe import loss_kinds
from rankless.structures import DetectionBatch
from support.loss_cases import Truths, inside, overlap, regions_of, sigmoid


def yolo(name: str, **options) -> YoloLoss:
    """The loss of a model that was published with it."""
    return YoloLoss(loss_kinds.Loss(name=name, **options), name)


ANCHORS = ((6.0, 8.0), (11.0, 9.0), (16.0, 24.0), (30.0, 28.0))
# Two heads that share an anchor, as YOLOv4-tiny's do; anchor 0 belongs to none.
HEADS = (
    YoloHead(ANCHORS, mask=(2, 3), stride=16, scale_xy=1.05, anchor_iou=0.3),
    YoloHead(ANCHORS, mask=(1, 2), stride=8, scale_xy=1.2, anchor_iou=0.3),
)
LEVELS = ("P4", "P3")
HEIGHT, WIDTH, CLASSES = 32, 48, 3
LOSSES = [
    yolo("yolov3", ignore=0.3),
    yolo("yolov3", box=2.0, objectness=0.5, classes=3.0, ignore=0.5, smoothing=0.1),
    yolo("yolov4", box=0.07, ignore=0.3),
    yolo("yolov4", box=0.5, objectness=2.0, classes=0.7, ignore=0.2, anchor_iou=1.0, smoothing=0.1),
    yolo("yolov4", box=0.07, ignore=0.4, anchor_iou=0.1),
    yolo("yolov3", ignore=0.4, box_loss="ciou", objectness_loss="focal", gamma=1.5, alpha=0.25),
    yolo("yolov4", ignore=0.3, box_loss="mse", objectness_loss="quality-focal"),
    yolo("yolov4", ignore=0.3, objectness_loss="quality-focal", gamma=1.0, alpha=0.7),
]
LOSS_IDS = [
    *("v3", "v3-factors", "v4", "v4-best-only", "v4-many"),
    *("v3-ciou-focal", "v4-mse-quality", "v4-quality"),
]


def bce(logit: float, wanted: float) -> float:
    return -wanted * math.log(sigmoid(logit)) - (1 - wanted) * math.log(1 - sigmoid(logit))


def complete_overlap(a: list[float], b: list[float], alphas: dict, name: tuple) -> float:
    """CIoU; α is taken from ``alphas`` where it is known, so that differences do not see it change."""
    iou = overlap(a, b)
    dx, dy = (a[0] + a[2] - b[0] - b[2]) / 2, (a[1] + a[3] - b[1] - b[3]) / 2
    cw, ch = max(a[2], b[2]) - min(a[0], b[0]), max(a[3], b[3]) - min(a[1], b[1])
    turn = math.atan((a[2] - a[0]) / (a[3] - a[1])) - math.atan((b[2] - b[0]) / (b[3] - b[1]))
    v = 4 / math.pi**2 * turn**2
    alpha = alphas.setdefault(name, v / (1 - iou + v + 1e-6))
    return iou - (dx**2 + dy**2) / (cw**2 + ch**2) - alpha * v


def decoded(t: list[float], i: int, j: int, anchor: tuple[float, float], head: YoloHead) -> list[float]:
    s = head.scale_xy
    x = (i + s * sigmoid(t[0]) - (s - 1) / 2) * head.stride
    y = (j + s * sigmoid(t[1]) - (s - 1) / 2) * head.stride
    w, h = math.exp(t[2]) * anchor[0], math.exp(t[3]) * anchor[1]
    return [x - w / 2, y - h / 2, x + w / 2, y + h / 2]


def shape_overlap(w: float, h: float, anchor: tuple[float, float]) -> float:
    common = min(w, anchor[0]) * min(h, anchor[1])
    return common / (w * h + anchor[0] * anchor[1] - common)


def reference(loss: YoloLoss, raws: list[Tensor], batch: DetectionBatch, alphas: dict) -> list[float]:
    parts = [0.0, 0.0, 0.0]
    for number, (raw, head) in enumerate(zip(raws, HEADS, strict=True)):
        for b in range(len(raw)):
            truths = [
                (box, label)
                for box, label, valid in zip(
                    batch.boxes[b].tolist(), batch.labels[b].tolist(), batch.valid[b].tolist(), strict=True
                )
                if valid
            ]
            added = one_image(loss, raw[b].tolist(), head, truths, regions_of(batch, b), alphas, (number, b))
            parts = [part + more for part, more in zip(parts, added, strict=True)]
    factors = (
        first(loss.options.box, 1.0 if compares(loss) == "mse" else 0.07),
        loss.options.objectness,
        loss.options.classes,
    )
    return [first(factor, 1.0) * part for factor, part in zip(factors, parts, strict=True)]


def first(*values: float | str) -> float:
    return next(value for value in values if value != "auto")


def compares(loss: YoloLoss) -> str:
    return first(loss.options.box_loss, {"yolov3": "mse", "yolov4": "ciou"}[loss.name])


def objectness(loss: YoloLoss, logit: float, present: bool, quality: float) -> float:
    """Of one cell that counts; ``quality`` is its IoU with its truth, 0 for a negative."""
    p = sigmoid(logit)
    alpha = loss.options.alpha
    weight = 1.0 if alpha == "none" else alpha if present else 1 - alpha
    if loss.options.objectness_loss == "focal":
        right = p if present else 1 - p
        return -weight * (1 - right) ** loss.options.gamma * math.log(right)
    if loss.options.objectness_loss == "quality-focal":
        return weight * abs(quality - p) ** loss.options.gamma * bce(logit, quality)
    return bce(logit, 1.0 if present else 0.0)


def one_image(loss, raw, head, truths, regions, alphas, name):
    rows, columns = len(raw[0]), len(raw[0][0])

    def cell(a, j, i):
        return [raw[a * (5 + CLASSES) + k][j][i] for k in range(5 + CLASSES)]

    threshold = first(getattr(loss.options, "anchor_iou", "auto"), head.anchor_iou)
    slots: dict[tuple, list[tuple]] = {}
    for t, (box, label) in enumerate(truths):
        w, h = max(box[2] - box[0], SMALLEST_SIDE), max(box[3] - box[1], SMALLEST_SIDE)
        overlaps = [shape_overlap(w, h, anchor) for anchor in ANCHORS]
        best = overlaps.index(max(overlaps))
        cx, cy = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        i, j = min(int(cx / head.stride), columns - 1), min(int(cy / head.stride), rows - 1)
        for a, anchor in enumerate(head.mask):
            if anchor == best or (loss.name == "yolov4" and threshold < 1 and overlaps[anchor] > threshold):
                slots.setdefault((a, j, i), []).append((t, cx, cy, w, h, label))

    box_sum = objectness_sum = class_sum = 0.0
    for a, anchor in enumerate(head.mask):
        for j in range(rows):
            for i in range(columns):
                t = cell(a, j, i)
                here = slots.get((a, j, i), [])
                found = decoded(t, i, j, ANCHORS[anchor], head)
                near = max((overlap(found, box) for box, _ in truths), default=0.0) > first(
                    loss.options.ignore, 0.7
                )
                if loss.name == "yolov4":
                    near = near and max(sigmoid(c) for c in t[5:]) > 0.25
                excused = any(inside(found, region) > 0.5 for region in regions)
                if here or not (near or excused):
                    boxes = [[x - w / 2, y - h / 2, x + w / 2, y + h / 2] for _, x, y, w, h, _ in here]
                    quality = max((overlap(found, box) for box in boxes), default=0.0)
                    # The target has no gradient: differences must not see it change either.
                    quality = alphas.setdefault((*name, "quality", a, j, i), quality)
                    objectness_sum += objectness(loss, t[4], bool(here), quality)
                if not here:
                    continue
                labels = {truth[-1] for truth in here}
                for c in range(CLASSES):
                    y = 1.0 if c in labels else 0.0
                    epsilon = first(loss.options.smoothing, 0.0)
                    class_sum += bce(t[5 + c], y * (1 - epsilon) + epsilon / 2)
                for k, cx, cy, w, h, _ in here if loss.name == "yolov4" else here[-1:]:
                    if compares(loss) == "ciou":
                        wanted = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
                        box_sum += 1 - complete_overlap(found, wanted, alphas, (*name, a, k))
                        continue
                    s = head.scale_xy
                    x = min((cx / head.stride - i + (s - 1) / 2) / s, 1.0)
                    y = min((cy / head.stride - j + (s - 1) / 2) / s, 1.0)
                    tw, th = math.log(w / ANCHORS[anchor][0]), math.log(h / ANCHORS[anchor][1])
                    squares = (t[2] - tw) ** 2 / 2 + (t[3] - th) ** 2 / 2
                    share = w * h / (rows * columns * head.stride**2)
                    box_sum += (2 - share) * (bce(t[0], x) + bce(t[1], y) + squares)
    return box_sum, objectness_sum, class_sum


# --- cases -----------------------------------------------------------------------------------------------


HARD = [
    ([8.0, 8.0, 24.0, 32.0], 0),
    ([9.0, 8.0, 24.0, 31.0], 2),  # the same cell and anchor, another class
    ([8.0, 7.0, 23.0, 31.0], 2),  # and once more
    ([48.0, 4.0, 48.0, 12.0], 1),  # no width, its center on the right border
    ([38.0, 32.0, 48.0, 32.0], 1),  # no height, its center on the lower border
    ([0.0, 0.0, 48.0, 32.0], 0),  # the whole image
    ([16.0, 0.0, 32.0, 16.0], 1),  # between anchors
    ([2.0, 2.0, 5.0, 6.0], 1),  # best for the anchor that no head owns
]


def make_raw(batch: int, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [
        torch.randn(batch, 2 * (5 + CLASSES), HEIGHT // head.stride, WIDTH // head.stride, generator=rng).to(
            dtype
        )
        for head in HEADS
    ]


TRUTHS = Truths(HEIGHT, WIDTH, CLASSES, largest=(34, 30), many=40, hard=HARD)
case, make_batch = TRUTHS.case, TRUTHS.batch
