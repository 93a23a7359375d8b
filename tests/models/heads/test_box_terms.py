"""The box terms: what they are of each kind, of either way to place a box, and how gradients are cut."""

from __future__ import annotations

import math

import pytest
import torch
import torchvision.ops

from rankless.geometry.boxes import SIMILARITIES
from rankless.models.heads.truths import Truths
from rankless.models.heads.yolo.assign import assign
from rankless.models.heads.yolo.codec import YoloHead
from rankless.models.heads.yolo.loss import clipped, dissimilarity, placed, squared_error

ANCHORS = ((16.0, 24.0), (30.0, 28.0))
OLD = YoloHead(ANCHORS, mask=(0, 1), stride=16, scale_xy=1.05, anchor_iou=0.1)
NEW = YoloHead(ANCHORS, mask=(0, 1), stride=16, scale_xy=2.0, new_coords=True, anchor_iou=0.1)
SHAPE = (4, 4)
BOX = (20.0, 18.0, 41.0, 50.0)  # its center lies in column 1, row 2


def one_truth(head: YoloHead):
    boxes = torch.tensor([[BOX]], dtype=torch.float64)
    valid = torch.ones(1, 1, dtype=torch.bool)
    truths = Truths.of(boxes, torch.zeros(1, 1, dtype=torch.int64), valid, torch.float64)
    matches = assign(truths, head, SHAPE)
    assert matches.hit.all()
    return truths, matches


def right_offsets(head: YoloHead) -> torch.Tensor:
    """(1, 1, 2, 4): what the head has to say so that both anchors' boxes are the truth."""
    x, y, w, h = (BOX[0] + BOX[2]) / 2, (BOX[1] + BOX[3]) / 2, BOX[2] - BOX[0], BOX[3] - BOX[1]
    rows = []
    for aw, ah in ANCHORS:
        center = [
            logit((at / 16 - cell + (head.scale_xy - 1) / 2) / head.scale_xy) for at, cell in ((x, 1), (y, 2))
        ]
        if head.new_coords:
            size = [logit(math.sqrt(w / aw) / 2), logit(math.sqrt(h / ah) / 2)]
        else:
            size = [math.log(w / aw), math.log(h / ah)]
        rows.append(center + size)
    return torch.tensor(rows, dtype=torch.float64).view(1, 1, 2, 4)


def logit(p: float) -> float:
    return math.log(p / (1 - p))


@pytest.mark.parametrize("head", [OLD, NEW], ids=["old", "new-coords"])
def test_at_the_right_offsets_nothing_is_left_to_learn(head):
    truths, matches = one_truth(head)
    offsets = right_offsets(head).requires_grad_()
    torch.testing.assert_close(
        placed(offsets.detach(), head, matches), torch.tensor(BOX, dtype=torch.float64).expand(1, 1, 2, 4)
    )
    for similarity in SIMILARITIES.values():
        loss = dissimilarity(
            offsets, head, truths, matches, matches.hit, similarity, factor=1.0, largest=math.inf
        )
        assert loss.item() == pytest.approx(0, abs=1e-12)
    (gradient,) = torch.autograd.grad(squared_error(offsets, head, truths, matches, matches.hit), offsets)
    assert gradient.abs().max() < 1e-12


@pytest.mark.parametrize("head", [OLD, NEW], ids=["old", "new-coords"])
def test_the_gradient_of_the_squared_error_is_the_distance_from_the_right_value(head):
    # As Darknet's delta_yolo_box: (2 - w·h) times what is said less what is right; σ where it is a σ.
    truths, matches = one_truth(head)
    rng = torch.Generator().manual_seed(0)
    offsets = torch.randn(1, 1, 2, 4, dtype=torch.float64, generator=rng).requires_grad_()
    (gradient,) = torch.autograd.grad(squared_error(offsets, head, truths, matches, matches.hit), offsets)
    right, said = right_offsets(head), offsets.detach()
    logistic = torch.tensor([True, True, head.new_coords, head.new_coords])
    weight = 2 - (BOX[2] - BOX[0]) * (BOX[3] - BOX[1]) / 64**2
    expected = weight * torch.where(logistic, said.sigmoid() - right.sigmoid(), said - right)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("giou", torchvision.ops.generalized_box_iou_loss),
        ("diou", torchvision.ops.distance_box_iou_loss),
        ("ciou", torchvision.ops.complete_box_iou_loss),
    ],
)
@pytest.mark.parametrize("head", [OLD, NEW], ids=["old", "new-coords"])
def test_dissimilarity_equals_torchvisions_losses_of_the_decoded_boxes(head, name, theirs):
    truths, matches = one_truth(head)
    offsets = right_offsets(head) + torch.linspace(-0.7, 0.9, 8, dtype=torch.float64).view(1, 1, 2, 4)
    only = torch.tensor([[[True, False]]])
    for counted in (matches.hit, only):
        found = dissimilarity(
            offsets, head, truths, matches, counted, SIMILARITIES[name], factor=0.3, largest=5.0
        )
        boxes = placed(offsets, head, matches)[counted]
        expected = 0.3 * theirs(boxes, torch.tensor(BOX).expand_as(boxes).double(), reduction="sum")
        assert found.item() == pytest.approx(expected.item(), abs=1e-6)


def test_gradients_that_are_no_numbers_become_nothing():
    x = torch.tensor([0.0, 4.0, -1.0], requires_grad=True)
    clipped(lambda y: (y.sqrt() * torch.tensor([1.0, 8.0, 1.0])).nan_to_num().sum(), x, 1.5).backward()
    assert x.grad.tolist() == [0.0, 1.5, 0.0]
