"""The anchor-free head's loss once more, literally: images, points and truths one after another, in floats.

Written from the papers' formulas; the reference shares no code with the package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rankless.models.heads.anchor_free.codec import AnchorFreeHead
from rankless.models.heads.anchor_free.loss import AnchorFreeLoss
from rankless.recipe import loss_kinds
from rankless.structures import DetectionBatch
from support.loss_cases import Truth, Truths, overlap, regions_of, sigmoid

FAR = 1e5


def generalized(a: list[float], b: list[float]) -> float:
    w, h = max(0.0, min(a[2], b[2]) - max(a[0], b[0])), max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h
    hull = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
    return overlap(a, b) - (hull - union) / hull


@dataclass
class Point:
    """One point of one image: where it is, and what the network says there."""

    x: float
    y: float
    stride: int
    box: list[float]
    logits: list[float]
    sides: list[list[float]]  # the bins' logits, side by side; empty without bins


@dataclass
class Answer:
    """What a positive point answers for."""

    box: list[float]
    label: int
    quality: float
    weight: float


def points_of(raws: list[list], strides: list[int], bins: int) -> list[Point]:
    """All points of one image: heads one after another, rows from above, columns from the left."""
    found = []
    for raw, stride in zip(raws, strides, strict=True):
        for j in range(len(raw[0])):
            for i in range(len(raw[0][0])):
                t = [channel[j][i] for channel in raw]
                x, y = (i + 0.5) * stride, (j + 0.5) * stride
                if bins:
                    sides = [t[k * bins : k * bins + bins] for k in range(4)]
                    reach = []
                    for side in sides:
                        odds = [math.exp(v) for v in side]
                        reach.append(stride * sum(k * odd for k, odd in enumerate(odds)) / sum(odds))
                    box = [x - reach[0], y - reach[1], x + reach[2], y + reach[3]]
                    found.append(Point(x, y, stride, box, t[4 * bins :], sides))
                else:
                    cx, cy = x + t[0] * stride, y + t[1] * stride
                    w, h = math.exp(t[2]) * stride, math.exp(t[3]) * stride
                    box = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
                    found.append(Point(x, y, stride, box, t[4:], []))
    return found


def thick(box: list[float]) -> list[float]:
    """A truth has sides of at least a tenth of a pixel."""
    cx, cy = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    w, h = max(box[2] - box[0], 0.1), max(box[3] - box[1], 0.1)
    return [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]


def task_aligned(points: list[Point], listed: list[Truth]) -> dict[int, Answer]:
    """TOOD with α = ½, β = 6 and the 10 best points; small truths reach a cell to each side, or half.

    The weight is the quality without the truth's best IoU.
    """
    truths = sorted((thick(box), label) for box, label in listed)
    chosen: dict[int, list[int]] = {}
    metric = {}
    least = 0.5 if points[0].sides else 1.0
    for t, (box, label) in enumerate(truths):
        cx, cy = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        near = []
        for p, point in enumerate(points):
            half_w = max((box[2] - box[0]) / 2, least * point.stride)
            half_h = max((box[3] - box[1]) / 2, least * point.stride)
            if abs(point.x - cx) <= half_w and abs(point.y - cy) <= half_h:
                metric[t, p] = sigmoid(point.logits[label]) ** 0.5 * max(overlap(point.box, box), 1e-6) ** 6
                near.append(p)
        near.sort(key=lambda p: (-metric[t, p], p))
        for p in near[:10]:
            chosen.setdefault(p, []).append(t)
    owner = {p: max(ts, key=lambda t: (overlap(points[p].box, truths[t][0]), -t)) for p, ts in chosen.items()}
    answers = {}
    for t, (box, label) in enumerate(truths):
        own = [p for p in owner if owner[p] == t]
        for p in own:
            best = max(overlap(points[q].box, box) for q in own)
            weight = metric[t, p] / max(metric[t, q] for q in own)
            answers[p] = Answer(box, label, weight * best, weight)
    return answers


def simota(points: list[Point], listed: list[Truth]) -> dict[int, Answer]:
    """YOLOX's choice without its objectness."""
    truths = sorted((thick(box), label) for box, label in listed)
    chosen: dict[int, list[int]] = {}
    cost = {}
    for t, (box, label) in enumerate(truths):
        cx, cy = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        near = []
        for p, point in enumerate(points):
            inside = box[0] <= point.x <= box[2] and box[1] <= point.y <= box[3]
            central = max(abs(point.x - cx), abs(point.y - cy)) <= 2.5 * point.stride
            if not (inside or central):
                continue
            entropy = 0.0
            for c, logit in enumerate(point.logits):
                entropy -= math.log(sigmoid(logit)) if c == label else math.log(1 - sigmoid(logit))
            cost[t, p] = entropy - 3 * math.log(overlap(point.box, box) + 1e-8)
            if not (inside and central):
                cost[t, p] += FAR
            near.append(p)
        ten = sorted((overlap(points[p].box, box) for p in near), reverse=True)[:10]
        near.sort(key=lambda p: (cost[t, p], p))
        for p in near[: max(1, int(sum(ten)))]:
            chosen.setdefault(p, []).append(t)
    answers = {}
    for p, ts in chosen.items():
        box, label = truths[min(ts, key=lambda t: (cost[t, p], t))]
        answers[p] = Answer(box, label, overlap(points[p].box, box), 1.0)
    return answers


RULES = {"task-aligned": task_aligned, "simota": simota}


def distribution_loss(point: Point, box: list[float], bins: int) -> float:
    """GFL's: cross-entropy with the two bins beside the distance, mean over the four sides."""
    distances = [point.x - box[0], point.y - box[1], box[2] - point.x, box[3] - point.y]
    total = 0.0
    for distance, logits in zip(distances, point.sides, strict=True):
        y = min(max(distance / point.stride, 0.0), bins - 1.0)
        left = min(int(y), bins - 2)
        scale = math.log(sum(math.exp(v) for v in logits))
        total += (left + 1 - y) * (scale - logits[left]) + (y - left) * (scale - logits[left + 1])
    return total / 4


def reference(
    loss, raws: list[Tensor], strides: list[int], bins: int, batch: DetectionBatch, fixed: list | None = None
) -> tuple[dict[str, float], float]:
    """The parts and the count.

    Args:
        loss: its factors, its smoothing and the name of its assignment are read.
        fixed: the assignments of an earlier call, image by image; filled if it is empty.
    """
    options = loss.options
    parts = {"box": 0.0, "classes": 0.0, **({"dfl": 0.0} if bins else {})}
    count = 0.0
    fixed = [] if fixed is None else fixed
    known = bool(fixed)
    for b in range(len(raws[0])):
        points = points_of([raw[b].tolist() for raw in raws], strides, bins)
        if not known:
            lists = (batch.boxes[b].tolist(), batch.labels[b].tolist(), batch.valid[b].tolist())
            truths = [(box, label) for box, label, valid in zip(*lists, strict=True) if valid]
            fixed.append(RULES[options.assign](points, truths))
        for p, point in enumerate(points):
            answer = fixed[b].get(p)
            regions = regions_of(batch, b)
            if not answer and any(x <= point.x < z and y <= point.y < w for x, y, z, w in regions):
                continue
            for c, logit in enumerate(point.logits):
                wanted = 0.0
                if answer:
                    own = 1.0 if c == answer.label else 0.0
                    smooth = own * (1 - options.smoothing) + options.smoothing / 2
                    wanted = answer.quality * smooth
                entropy = -wanted * math.log(sigmoid(logit)) - (1 - wanted) * math.log(1 - sigmoid(logit))
                parts["classes"] += options.classes * entropy
            if answer:
                count += answer.weight
                like = {"iou": overlap, "giou": generalized}[options.box_loss](point.box, answer.box)
                parts["box"] += options.box * answer.weight * (1 - like)
                if bins:
                    parts["dfl"] += options.dfl * answer.weight * distribution_loss(point, answer.box, bins)
    return parts, count


# --- cases -----------------------------------------------------------------------------------------------

HEIGHT, WIDTH, CLASSES = 64, 96, 3
STRIDES = [8, 16, 32]


HARD = [
    ([8.0, 8.0, 40.0, 32.0], 0),
    ([9.0, 8.0, 40.0, 31.0], 2),  # almost the same
    ([8.0, 8.0, 40.0, 32.0], 1),  # the same, of another class
    ([8.0, 8.0, 40.0, 32.0], 0),  # listed twice
    ([96.0, 4.0, 96.0, 12.0], 1),  # no width, on the right border
    ([70.0, 64.0, 88.0, 64.0], 1),  # no height, on the lower border
    ([0.0, 0.0, 96.0, 64.0], 0),  # the whole image
    ([49.0, 49.0, 51.0, 51.5], 1),  # smaller than a cell, around none of the points
    ([49.5, 49.5, 51.0, 51.0], 2),  # and another there
]


def make_raw(bins: int, batch: int, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    outputs = 4 * max(bins, 1) + CLASSES
    return [
        torch.randn(batch, outputs, HEIGHT // s, WIDTH // s, generator=rng, dtype=torch.float64).to(dtype)
        for s in STRIDES
    ]


TRUTHS = Truths(HEIGHT, WIDTH, CLASSES, largest=(60, 60), many=200, hard=HARD)
case, make_batch = TRUTHS.case, TRUTHS.batch


def loss_of(**options) -> AnchorFreeLoss:
    return AnchorFreeLoss(loss_kinds.AnchorFreeLoss(**options))


LOSSES = [
    AnchorFreeLoss(),
    loss_of(assign="simota", box_loss="iou", box=5.0, classes=0.5, dfl=1.5),
    loss_of(assign="task-aligned", box_loss="iou", box=0.7, classes=2.0, dfl=0.3, smoothing=0.1),
]
LOSS_IDS = ["plain", "simota", "smooth"]


def heads_of(bins: int) -> list[AnchorFreeHead]:
    return [AnchorFreeHead(stride, bins) for stride in STRIDES]
