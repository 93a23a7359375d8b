"""Box geometry against torchvision, its own bounds, and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
import torchvision.ops
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rankless.geometry import boxes

SIZES = st.floats(0.01, 1000)
PLACES = st.floats(-1000, 1000)
BOX = st.tuples(PLACES, PLACES, SIZES, SIZES).map(
    lambda b: torch.tensor([b[0], b[1], b[0] + b[2], b[1] + b[3]], dtype=torch.float64)
)
MEASURES = [boxes.SIMILARITIES[name] for name in ("iou", "giou", "diou", "ciou", "eiou", "siou")]


def random_boxes(count: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, dtype=torch.float64, generator=rng) * 100
    size = torch.rand(count, 2, dtype=torch.float64, generator=rng) * 80 + 0.5
    return torch.cat((corner, corner + size), 1)


@pytest.mark.parametrize(
    ("ours", "theirs", "near"),
    [
        (boxes.iou, torchvision.ops.box_iou, 1e-12),
        (boxes.giou, torchvision.ops.generalized_box_iou, 1e-12),
        (boxes.diou, lambda a, b: torchvision.ops.distance_box_iou(a, b, eps=0), 1e-12),
        # Theirs adds its eps to the diagonal too: 1e-6 px² of thousands.
        (boxes.ciou, lambda a, b: torchvision.ops.complete_box_iou(a, b, eps=1e-6), 1e-8),
    ],
)
def test_equals_torchvision(ours, theirs, near):
    a, b = random_boxes(40, 1), random_boxes(30, 2)
    torch.testing.assert_close(ours(a[:, None], b[None]), theirs(a, b), rtol=0, atol=near)


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


def plain_iou(a: list[float], b: list[float]) -> float:
    w = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    h = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    return w * h / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h)


def literal_eiou(a: list[float], b: list[float]) -> float:
    """Zhang et al. 2021, equation 7, in Python's floats."""
    overlap = plain_iou(a, b)
    cw, ch = max(a[2], b[2]) - min(a[0], b[0]), max(a[3], b[3]) - min(a[1], b[1])
    rho2 = ((a[0] + a[2] - b[0] - b[2]) / 2) ** 2 + ((a[1] + a[3] - b[1] - b[3]) / 2) ** 2
    wide = ((a[2] - a[0]) - (b[2] - b[0])) ** 2 / cw**2
    high = ((a[3] - a[1]) - (b[3] - b[1])) ** 2 / ch**2
    return overlap - rho2 / (cw**2 + ch**2) - wide - high


def literal_siou(a: list[float], b: list[float]) -> float:
    """Gevorgyan 2022, its equations one after another, in Python's floats."""
    overlap = plain_iou(a, b)
    cw, ch = max(a[2], b[2]) - min(a[0], b[0]), max(a[3], b[3]) - min(a[1], b[1])
    bx, by, gx, gy = (a[0] + a[2]) / 2, (a[1] + a[3]) / 2, (b[0] + b[2]) / 2, (b[1] + b[3]) / 2
    sigma = math.hypot(gx - bx, gy - by)
    sine = abs(gy - by) / sigma if sigma else 0.0
    angle = 1 - 2 * math.sin(math.asin(min(sine, 1.0)) - math.pi / 4) ** 2
    gamma = 2 - angle
    distance = sum(1 - math.exp(-gamma * rho) for rho in (((gx - bx) / cw) ** 2, ((gy - by) / ch) ** 2))
    w, h, gw, gh = a[2] - a[0], a[3] - a[1], b[2] - b[0], b[3] - b[1]
    unlike = (abs(w - gw) / max(w, gw), abs(h - gh) / max(h, gh))
    shape = sum((1 - math.exp(-omega)) ** 4 for omega in unlike)
    return 1 - (1 - overlap + (distance + shape) / 2)


@pytest.mark.parametrize(
    ("measure", "literal"), [(boxes.eiou, literal_eiou), (boxes.siou, literal_siou)], ids=["eiou", "siou"]
)
@given(BOX, BOX)
def test_equals_the_papers_equations(measure, literal, a, b):
    assert measure(a, b).item() == pytest.approx(literal(a.tolist(), b.tolist()), abs=1e-9)


@given(BOX, BOX)
def test_bounds_and_order(a, b):
    iou, giou, diou, ciou, eiou, siou = (measure(a, b).item() for measure in MEASURES)
    assert 0 <= iou <= 1
    assert -1 <= giou <= iou + 1e-9
    assert -1 <= diou <= iou
    assert ciou <= diou
    assert -3 <= eiou <= diou
    assert -1.1 <= siou <= iou + 1e-12


@given(BOX, BOX, PLACES, st.floats(0.1, 10))
def test_symmetric_and_blind_to_place_and_scale(a, b, shift, factor):
    for measure in MEASURES:
        expected = measure(a, b).item()
        assert measure(b, a).item() == pytest.approx(expected, abs=1e-12)
        # A box of 0.01 px at 1,000 px keeps 11 digits of its size.
        assert measure(a + shift, b + shift).item() == pytest.approx(expected, abs=1e-6)
        assert measure(a * factor, b * factor).item() == pytest.approx(expected, abs=1e-6)


@given(BOX)
def test_a_box_overlaps_itself_wholly(box):
    for measure in MEASURES:
        assert measure(box, box).item() == pytest.approx(1, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("measure", [boxes.iou, boxes.giou, boxes.diou, boxes.eiou, boxes.siou])
def test_gradients_are_finite_differences(measure):
    a, b = random_boxes(30, 5).requires_grad_(), random_boxes(30, 6).requires_grad_()
    assert torch.autograd.gradcheck(measure, (a, b))


@pytest.mark.slow
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


@pytest.mark.slow
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
