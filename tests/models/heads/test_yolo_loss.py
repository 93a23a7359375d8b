"""The losses against a slow, literal reference in plain Python, and its finite differences."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, fields, replace

import pytest
import torch

from rankless.errors import UserError
from rankless.geometry.boxes import pairwise_iou
from rankless.models.heads.truths import best_overlap
from rankless.models.heads.yolo.codec import HeadLoss, YoloHead
from rankless.models.heads.yolo.loss import YoloLoss, from_recipe
from rankless.recipe import loss_kinds
from support.loss_cases import CASES, assert_gradients
from support.reference_for_yolo import (
    ANCHORS,
    CLASSES,
    HEADS,
    LEVELS,
    LOSS_IDS,
    LOSSES,
    TRUTHS,
    bce,
    case,
    make_batch,
    make_raw,
    reference,
    yolo,
)
from support.thorough import THOROUGH


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
@pytest.mark.parametrize("name", ["random", "hard", "ignored"] if THOROUGH else ["ignored"])
def test_gradient_is_the_references_finite_differences(loss, name):
    batch = case(name)
    raw = [r.requires_grad_() for r in make_raw(2, 7)]
    # No gradient is cut here: factors are small (checked against the limit below).
    loss(raw, HEADS, batch).sum.backward()
    alphas: dict = {}
    reference(loss, raw, batch, alphas)
    assert_gradients(raw, lambda values: sum(reference(loss, values, batch, alphas)), 25, 15)


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


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_padding_and_what_lies_in_it_change_no_bit(loss):
    rng = random.Random(5)
    lists = [TRUTHS.drawn(rng, 200), []]
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


def test_more_pairs_than_are_compared_at_once_have_the_same_best_overlap():
    rng = torch.Generator().manual_seed(3)
    truths, boxes = (
        torch.cat((corner, corner + 9), -1)
        for corner in (50 * torch.rand(1, count, 2, generator=rng) for count in (700, 4000))
    )
    found = best_overlap(boxes, truths)
    torch.testing.assert_close(found, pairwise_iou(boxes, truths).amax(-1))


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


def test_smooth_objectness_learns_the_overlap_where_negatives_are_ignored():
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
