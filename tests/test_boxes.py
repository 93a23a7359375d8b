"""Box geometry against torchvision, its own bounds, and finite differences."""

from __future__ import annotations

import pytest
import torch
import torchvision.ops
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankless import boxes

SIZES = st.floats(0.01, 1000)
PLACES = st.floats(-1000, 1000)
BOX = st.tuples(PLACES, PLACES, SIZES, SIZES).map(
    lambda b: torch.tensor([b[0], b[1], b[0] + b[2], b[1] + b[3]], dtype=torch.float64)
)
MEASURES = [boxes.iou, boxes.giou, boxes.diou, boxes.ciou]
quick = settings(max_examples=60, deadline=None)


def random_boxes(count: int, seed: int = 0) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, dtype=torch.float64, generator=chance) * 100
    size = torch.rand(count, 2, dtype=torch.float64, generator=chance) * 80 + 0.5
    return torch.cat((corner, corner + size), 1)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (boxes.iou, torchvision.ops.box_iou),
        (boxes.giou, torchvision.ops.generalized_box_iou),
        (boxes.diou, lambda a, b: torchvision.ops.distance_box_iou(a, b, eps=0)),
    ],
)
def test_equals_torchvision(ours, theirs):
    a, b = random_boxes(40, 1), random_boxes(30, 2)
    torch.testing.assert_close(ours(a[:, None], b[None]), theirs(a, b), rtol=1e-12, atol=1e-12)


def test_ciou_equals_torchvision():
    a, b = random_boxes(40, 1), random_boxes(30, 2)
    # Theirs adds its eps to the diagonal too: 1e-6 px² of thousands.
    theirs = torchvision.ops.complete_box_iou(a, b, eps=1e-6)
    torch.testing.assert_close(boxes.ciou(a[:, None], b[None]), theirs, rtol=0, atol=1e-8)


def test_pairwise_equals_torchvision_batch_by_batch():
    a, b = random_boxes(24, 3).view(2, 12, 4), random_boxes(14, 4).view(2, 7, 4)
    found = boxes.pairwise_iou(a, b)
    assert found.shape == (2, 12, 7)
    for number in range(2):
        torch.testing.assert_close(found[number], torchvision.ops.box_iou(a[number], b[number]))


def test_conversions_and_clipping_equal_torchvision():
    some = random_boxes(50) - 20
    torch.testing.assert_close(boxes.to_cxcywh(some), torchvision.ops.box_convert(some, "xyxy", "cxcywh"))
    torch.testing.assert_close(boxes.to_xyxy(boxes.to_cxcywh(some)), some)
    torch.testing.assert_close(boxes.clip(some, 60, 40), torchvision.ops.clip_boxes_to_image(some, (60, 40)))
    torch.testing.assert_close(boxes.area(some), torchvision.ops.box_area(some))


@quick
@given(BOX, BOX)
def test_bounds_and_order(a, b):
    iou, giou, diou, ciou = (measure(a, b).item() for measure in MEASURES)
    assert 0 <= iou <= 1
    assert -1 <= giou <= iou + 1e-9
    assert -1 <= diou <= iou
    assert ciou <= diou


@quick
@given(BOX, BOX, PLACES, st.floats(0.1, 10))
def test_symmetric_and_blind_to_place_and_scale(a, b, shift, factor):
    for measure in MEASURES:
        expected = measure(a, b).item()
        assert measure(b, a).item() == pytest.approx(expected, abs=1e-12)
        # A box of 0.01 px at 1,000 px keeps 11 digits of its size.
        assert measure(a + shift, b + shift).item() == pytest.approx(expected, abs=1e-6)
        assert measure(a * factor, b * factor).item() == pytest.approx(expected, abs=1e-6)


@quick
@given(BOX)
def test_a_box_overlaps_itself_wholly(box):
    for measure in MEASURES:
        assert measure(box, box).item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("measure", [boxes.iou, boxes.giou, boxes.diou])
def test_gradients_are_finite_differences(measure):
    a, b = random_boxes(30, 5).requires_grad_(), random_boxes(30, 6).requires_grad_()
    assert torch.autograd.gradcheck(measure, (a, b))


def test_ciou_gradient_is_finite_differences_with_alpha_held():
    a, b = random_boxes(30, 5).requires_grad_(), random_boxes(30, 6).requires_grad_()
    with torch.no_grad():
        gap = boxes.diou(a, b) - boxes.ciou(a, b)  # αv

    def v(x, y):
        wx, hx, wy, hy = *boxes.to_cxcywh(x).T[2:], *boxes.to_cxcywh(y).T[2:]
        return 4 / torch.pi**2 * (torch.atan(wx / hx) - torch.atan(wy / hy)) ** 2

    alpha = gap / v(a, b).detach()

    def literal(x, y):
        return boxes.diou(x, y) - alpha * v(x, y)

    assert torch.autograd.gradcheck(literal, (a, b))
    ours = torch.autograd.grad(boxes.ciou(a, b).sum(), (a, b))
    for mine, expected in zip(ours, torch.autograd.grad(literal(a, b).sum(), (a, b)), strict=True):
        torch.testing.assert_close(mine, expected)


POINT = [5.0, 5.0, 5.0, 5.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (POINT, POINT),
        (POINT, [0.0, 0.0, 0.0, 0.0]),
        (POINT, [0.0, 0.0, 10.0, 10.0]),
        ([5.0, 0.0, 5.0, 10.0], [5.0, 0.0, 5.0, 10.0]),  # a line on itself
        ([0.0, 3.0, 9.0, 3.0], [2.0, 0.0, 2.0, 8.0]),
        ([8.0, 8.0, 2.0, 2.0], [0.0, 0.0, 10.0, 10.0]),  # inside out
    ],
)
def test_boxes_without_area_are_finite(measure, first, second, dtype):
    a = torch.tensor(first, dtype=dtype, requires_grad=True)
    b = torch.tensor(second, dtype=dtype, requires_grad=True)
    value = measure(a, b)
    gradients = torch.autograd.grad(value, (a, b))
    assert value.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)
