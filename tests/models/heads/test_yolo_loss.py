"""The losses against a slow, literal reference in plain Python, and its finite differences."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, fields, replace

import pytest
import torch
from torch import Tensor

from rankless.errors import UserError
from rankless.models.heads.truths import SMALLEST_SIDE
from rankless.models.heads.yolo import assign as assign_page
from rankless.models.heads.yolo.codec import HeadLoss, YoloHead
from rankless.models.heads.yolo.loss import YoloLoss, from_recipe
from rankless.recipe import loss_kinds
from rankless.structures import DetectionBatch


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


# --- the reference: images, cells and truths one after another, in Python's floats ---------------------


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def bce(logit: float, wanted: float) -> float:
    return -wanted * math.log(sigmoid(logit)) - (1 - wanted) * math.log(1 - sigmoid(logit))


def overlap(a: list[float], b: list[float]) -> float:
    w = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    h = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h
    return w * h / union if union > 0 else 0.0


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
    """Box, objectness and classes."""
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
            added = one_image(loss, raw[b].tolist(), head, truths, alphas, (number, b))
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


def one_image(loss, raw, head, truths, alphas, name):
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
                if here or not near:
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


def make_batch(lists: list[list[tuple[list[float], int]]], padding: int = 0) -> DetectionBatch:
    longest = max(len(truths) for truths in lists) + padding
    boxes = torch.zeros(len(lists), longest, 4, dtype=torch.float64)
    labels = torch.zeros(len(lists), longest, dtype=torch.int64)
    valid = torch.zeros(len(lists), longest, dtype=torch.bool)
    for b, truths in enumerate(lists):
        for t, (box, label) in enumerate(truths):
            boxes[b, t], labels[b, t], valid[b, t] = torch.tensor(box), label, True
    images = torch.zeros(len(lists), 3, HEIGHT, WIDTH, dtype=torch.uint8)
    return DetectionBatch(images, boxes, labels, valid, list(range(len(lists))), [])


def random_truths(rng: random.Random, count: int) -> list[tuple[list[float], int]]:
    truths = []
    for _ in range(count):
        x1, y1 = rng.uniform(0, WIDTH - 4), rng.uniform(0, HEIGHT - 4)
        x2, y2 = rng.uniform(x1 + 2, min(x1 + 34, WIDTH)), rng.uniform(y1 + 2, min(y1 + 30, HEIGHT))
        # float32 is what batches carry; the reference then sees the very same numbers
        box = torch.tensor([x1, y1, x2, y2]).double().tolist()
        truths.append((box, rng.randrange(CLASSES)))
    return truths


def hard_truths() -> list[tuple[list[float], int]]:
    return [
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


def case(name: str) -> DetectionBatch:
    rng = random.Random(name)
    lists = {
        "random": [random_truths(rng, 4), random_truths(rng, 2)],
        "hard": [hard_truths(), random_truths(rng, 3)],
        "crowded": [random_truths(rng, 40), []],
        "one-empty": [[], random_truths(rng, 3)],
        "empty": [[], []],
    }
    return make_batch(lists[name])


CASES = ["random", "hard", "crowded", "one-empty", "empty"]


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_literal_reference(loss, name):
    batch = case(name)
    for seed in range(3):
        raw = make_raw(2, seed)
        found = loss(raw, HEADS, batch)
        expected = reference(loss, raw, batch, {})
        assert [found.parts[k].item() for k in ("box", "objectness", "classes")] == pytest.approx(
            expected, rel=1e-9, abs=1e-12
        )
        assert found.sum.item() == pytest.approx(sum(expected), rel=1e-9)
        assert found.count.item() == 2


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
@pytest.mark.parametrize("name", ["random", "hard"])
def test_gradient_is_the_references_finite_differences(loss, name):
    batch = case(name)
    raw = [r.requires_grad_() for r in make_raw(2, 7)]
    # No gradient is cut here: factors are small (checked against the limit below).
    loss(raw, HEADS, batch).sum.backward()
    values = [r.detach().clone() for r in raw]
    alphas: dict = {}
    reference(loss, values, batch, alphas)
    rng = random.Random(1)
    step = 1e-5
    for number, r in enumerate(raw):
        assert r.grad is not None
        steep = r.grad.flatten().abs().topk(25).indices.tolist()
        for index in {*steep, *rng.sample(range(r.numel()), 15)}:
            flat = values[number].view(-1)
            middle = flat[index].item()
            sides = []
            for side in (step, -step):
                flat[index] = middle + side
                sides.append(sum(reference(loss, values, batch, alphas)))
            flat[index] = middle
            difference = (sides[0] - sides[1]) / (2 * step)
            assert r.grad.view(-1)[index].item() == pytest.approx(difference, rel=1e-5, abs=1e-6)


def test_yolov4_cuts_each_truths_box_gradient_before_any_outer_factor():
    # Two alike truths in one slot: each gradient is cut at 5, then they add up to 10.
    truth = ([8.0, 8.0, 24.0, 30.0], 1)
    batch = make_batch([[truth, truth]])
    heads = (YoloHead(ANCHORS, mask=(2,), stride=16),)
    for outer in (1.0, 1 / 64, 65536.0):
        raw = torch.zeros(1, 5 + CLASSES, 2, 3, requires_grad=True)
        loss = yolo("yolov4", box=1e4, objectness=0, classes=0)
        (loss([raw], heads, batch).sum * outer).backward()
        cut = raw.grad[0, :4, 1, 1] / outer
        assert cut.abs().tolist() == [10.0] * 4
    # The value is not cut.
    assert loss([raw], heads, batch).sum.item() > 100


@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
@pytest.mark.parametrize("truths", [0, 3])
def test_without_positives_all_is_finite_and_connected(loss, truths):
    batch = DetectionBatch(
        torch.zeros(2, 3, HEIGHT, WIDTH, dtype=torch.uint8),
        torch.zeros(2, truths, 4),
        torch.zeros(2, truths, dtype=torch.int64),
        torch.zeros(2, truths, dtype=torch.bool),
        [0, 1],
        [],
    )
    raw = [r.requires_grad_() for r in make_raw(2, 3, torch.float32)]
    found = loss(raw, HEADS, batch)
    found.sum.backward()
    assert found.sum.isfinite()
    assert found.parts["box"] == found.parts["classes"] == 0
    for r in raw:
        cells = r.grad.unflatten(1, (2, -1))
        assert r.grad.isfinite().all()
        assert (cells[:, :, 4] > 0).all()
        assert (cells[:, :, :4] == 0).all() and (cells[:, :, 5:] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_padding_and_what_lies_in_it_change_no_bit(loss):
    rng = random.Random(5)
    lists = [random_truths(rng, 200), []]
    raw = [r.requires_grad_() for r in make_raw(2, 4, torch.float32)]

    def bits(batch):
        found = loss(raw, HEADS, batch)
        return [found.sum, *torch.autograd.grad(found.sum, raw)]

    tight, loose = make_batch(lists), make_batch(lists, padding=17)
    loose.boxes[~loose.valid] = torch.tensor([1.0, 2.0, 30.0, 31.0], dtype=torch.float64)
    loose.labels[~loose.valid] = 2
    first = bits(tight)
    for a, b in zip(first, bits(tight), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(first[1:], bits(loose)[1:], strict=True):
        assert torch.equal(a, b)  # gradients: no addition has more terms
    assert first[0].item() == pytest.approx(bits(loose)[0].item(), rel=1e-6)


@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_a_batch_is_the_sum_of_its_images(loss):
    lists = [hard_truths(), random_truths(random.Random(2), 4), []]
    raw = make_raw(3, 9)
    whole = loss(raw, HEADS, make_batch(lists)).sum.item()
    single = [loss([r[[b]] for r in raw], HEADS, make_batch([lists[b]])).sum.item() for b in range(3)]
    assert whole == pytest.approx(sum(single), rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_half_precision_outputs_are_computed_in_float32(loss):
    batch = case("hard")
    raw = [r.to(torch.bfloat16) for r in make_raw(2, 6)]
    with torch.autocast("cpu", torch.bfloat16):
        found = loss(raw, HEADS, batch)
    expected = loss([r.float() for r in raw], HEADS, batch)
    assert found.sum.dtype == torch.float32
    assert torch.equal(found.sum, expected.sum)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_never_asks_the_device_for_a_value(loss):
    # On the meta device there are no values: whatever needed one would fail.
    batch = case("hard").to(torch.device("meta"))
    raw = [r.to("meta").requires_grad_() for r in make_raw(2, 0, torch.float32)]
    found = loss(raw, HEADS, batch)
    found.sum.backward()
    assert found.sum.shape == found.count.shape == ()
    assert raw[0].grad.shape == raw[0].shape


@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_runs_with_deterministic_algorithms_and_without_gradients(loss):
    batch = case("crowded")
    raw = [r.requires_grad_() for r in make_raw(2, 2, torch.float32)]
    plain = loss(raw, HEADS, batch).sum
    torch.use_deterministic_algorithms(True)
    try:
        found = loss(raw, HEADS, batch).sum
        found.backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(found, plain)
    with torch.inference_mode():
        assert torch.equal(loss(raw, HEADS, batch).sum, plain)


def test_many_truths_are_compared_in_parts(monkeypatch):
    batch, raw = case("crowded"), make_raw(2, 1)
    whole = LOSSES[2](raw, HEADS, batch).sum
    monkeypatch.setattr(assign_page, "_PAIRS_AT_ONCE", 2 * 12 * 7)  # seven truths of forty at a time
    assert torch.equal(LOSSES[2](raw, HEADS, batch).sum, whole)


PLAIN = YoloHead(ANCHORS, mask=(2,), stride=16)


def test_auto_is_what_was_published():
    for heeds in (True, False):
        published = yolo("yolov3" if heeds else "yolov4").settings(PLAIN)
        assert published[1:5] == (1.0, 1.0, 0.7, 0.0)  # objectness, classes, ignore, smoothing
        assert published.objectness_loss == "bce"
    v3, v4 = (yolo(name).settings(PLAIN) for name in ("yolov3", "yolov4"))
    assert (v3.box_loss, v3.box) == ("mse", 1.0)
    assert (v4.box_loss, v4.box, v4.largest_gradient) == ("ciou", 0.07, 5.0)


OWN = HeadLoss(
    box=0.05,
    objectness=4.0,
    classes=0.5,
    ignore=0.6,
    box_loss="giou",
    smoothing=0.02,
    largest_gradient=2.0,
    smooth_objectness=True,
)
OWN_HEAD = YoloHead(ANCHORS, mask=(2,), stride=16, loss=OWN)


def test_a_heads_own_numbers_stand_between_the_recipe_and_the_published():
    own = yolo("yolov4").settings(OWN_HEAD)
    assert own == (0.05, 4.0, 0.5, 0.6, 0.02, "giou", "smooth", 2.0)
    given = {"box": 0.3, "objectness": 2.0, "classes": 3.0, "ignore": 0.4, "smoothing": 0.0}
    loss = yolo("yolov4", **given, box_loss="siou", objectness_loss="bce")
    assert loss.settings(OWN_HEAD) == (0.3, 2.0, 3.0, 0.4, 0.0, "siou", "bce", 2.0)


def test_a_heads_own_numbers_are_of_the_loss_it_was_published_with():
    other = YoloLoss(loss_kinds.Yolov3Loss(), "yolov4")
    assert other.settings(OWN_HEAD) == yolo("yolov3").settings(PLAIN)
    same = YoloLoss(loss_kinds.CfgLoss(), "yolov4")
    assert same.settings(OWN_HEAD).objectness == 4.0


@pytest.mark.parametrize(
    ("name", "own", "box_loss", "box"),
    [
        ("yolov4", 0.05, "eiou", 0.05),  # of one kind with giou
        ("yolov4", 0.05, "mse", 1.0),  # of another: the head's factor was not meant for it
        ("yolov4", None, "mse", 1.0),
        ("yolov3", None, "ciou", 0.07),
    ],
)
def test_a_heads_box_factor_is_of_its_kind_of_box_loss(name, own, box_loss, box):
    head = YoloHead(ANCHORS, mask=(2,), stride=16, loss=HeadLoss(box=own, box_loss="giou" if own else None))
    assert yolo(name, box_loss=box_loss).settings(head).box == box
    assert yolo(name, box_loss=box_loss, box=0.2).settings(head).box == 0.2


@pytest.mark.parametrize("box_loss", ["mse", "iou", "giou", "diou", "ciou", "eiou", "siou"])
def test_each_head_is_trained_by_its_own_numbers(box_loss):
    owns = (
        HeadLoss(box=0.4, objectness=4.0, classes=0.5, ignore=0.3, smoothing=0.1, box_loss=box_loss),
        HeadLoss(box=0.1, objectness=0.4, classes=2.0, ignore=0.6, smoothing=0.0, box_loss="diou"),
    )
    heads = tuple(replace(head, loss=own) for head, own in zip(HEADS, owns, strict=True))
    batch, raw = case("hard"), make_raw(2, 12)
    together = yolo("yolov4")(raw, heads, batch)
    alone = [
        yolo("yolov4", **{key: value for key, value in asdict(own).items() if value and key in FIELDS})(
            [r], [head], batch
        )
        for own, head, r in zip(owns, HEADS, raw, strict=True)
    ]
    for part in ("box", "objectness", "classes"):
        assert together.parts[part].item() == pytest.approx(
            sum(one.parts[part].item() for one in alone), rel=1e-12
        )
        for level, one in zip(LEVELS, alone, strict=True):
            assert together.parts[f"{level}/{part}"] == one.parts[part]


FIELDS = {field.name for field in fields(loss_kinds.Yolov4Loss)}


def test_a_heads_cut_is_its_own():
    batch = make_batch([[([8.0, 8.0, 24.0, 30.0], 1)]])
    for limit, cut in ((0.5, 0.5), (None, 5.0)):
        head = replace(PLAIN, loss=HeadLoss(largest_gradient=limit))
        raw = torch.zeros(1, 5 + CLASSES, 2, 3, requires_grad=True)
        yolo("yolov4", box=1e4, objectness=0, classes=0)([raw], [head], batch).sum.backward()
        assert raw.grad[0, :4, 1, 1].abs().tolist() == [cut] * 4
    head = replace(PLAIN, loss=HeadLoss(largest_gradient=math.inf))
    raw = torch.zeros(1, 5 + CLASSES, 2, 3, requires_grad=True)
    yolo("yolov4", box=1e4, objectness=0, classes=0)([raw], [head], batch).sum.backward()
    assert raw.grad[0, :4, 1, 1].abs().min() > 5


def test_smooth_objectness_wants_the_overlap_where_a_negative_would_be_left_out():
    # Anchor 2 in cell (1, 0) is 16 × 24 around (24, 8); the truth is the same, moved by 4 px: IoU 12 / 20.
    batch = make_batch([[([20.0, -4.0, 36.0, 20.0], 0)]])
    head = replace(PLAIN, loss=HeadLoss(smooth_objectness=True))
    raw = torch.zeros(1, 5 + CLASSES, 2, 3, dtype=torch.float64)
    raw[0, 4] = 0.3
    own = yolo("yolov4", ignore=0.5)
    found = own([raw], [head], batch).parts["objectness"].item()
    # The other five overlap too little, whatever they believe.
    assert found == pytest.approx(5 * bce(0.3, 0.0) + bce(0.3, 0.6))
    # A class probability below 0.25 makes a negative of it; so does a stricter threshold.
    unsure = raw.clone()
    unsure[0, 5:] = -2.0
    for loss, values in ((own, unsure), (yolo("yolov4", ignore=0.65), raw)):
        assert loss([values], [head], batch).parts["objectness"].item() == pytest.approx(6 * bce(0.3, 0.0))
    # The recipe's objectness loss comes before the head's.
    plain = yolo("yolov4", ignore=0.5, objectness_loss="bce")([raw], [head], batch).parts["objectness"].item()
    assert plain == pytest.approx(5 * bce(0.3, 0.0) + bce(0.3, 1.0))


def test_the_target_of_quality_focal_has_no_gradient():
    batch = make_batch([[([8.0, 8.0, 24.0, 30.0], 1)]])
    raw = torch.zeros(1, 5 + CLASSES, 2, 3, requires_grad=True)
    loss = yolo("yolov4", box=0.0, classes=0.0, objectness_loss="quality-focal")
    loss([raw], [PLAIN], batch).sum.backward()
    assert (raw.grad[0, :4] == 0).all() and (raw.grad[0, 5:] == 0).all() and (raw.grad[0, 4] != 0).all()


def test_yolov3_of_a_cfg_has_no_further_anchors():
    assert from_recipe(loss_kinds.CfgLoss(anchor_iou=0.2), "yolov4").name == "yolov4"
    with pytest.raises(UserError, match=r"'loss.anchor_iou': the cfg file's loss is yolov3"):
        from_recipe(loss_kinds.CfgLoss(anchor_iou=0.2), "yolov3")


@pytest.mark.parametrize("kind", ["focal", "quality-focal"])
def test_gamma_and_alpha_belong_to_both_focal_losses(kind):
    found = yolo("yolov4", objectness_loss=kind, gamma=1.0, alpha=0.25).options
    assert (found.gamma, found.alpha) == (1.0, 0.25)


def classes_of_heads(anchors, batch):
    """The class loss of a head of each anchor: 0 where no truth is assigned."""
    heads = [YoloHead(anchors, mask=(number,), stride=32) for number in range(len(anchors))]
    raw = torch.zeros(1, 5 + CLASSES, 1, 1)
    return [yolo("yolov3")([raw], [head], batch).parts["classes"].item() for head in heads]


def test_of_equal_anchors_the_first_is_best():
    anchors = ((8.0, 8.0), (16.0, 16.0), (16.0, 16.0))
    first, second, third = classes_of_heads(anchors, make_batch([[([2.0, 2.0, 18.0, 18.0], 0)]]))
    assert (first, third) == (0, 0) and second > 0


def test_padding_takes_no_slot_of_the_smallest_anchor():
    """Zeros look like the smallest box in the first cell."""
    assert classes_of_heads(ANCHORS, make_batch([[]], padding=3)) == [0] * len(ANCHORS)
