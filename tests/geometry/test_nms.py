"""Non-maximum suppression against a literal loop, its order, and boxes that other programs kept."""

from __future__ import annotations

import pytest
import torch
import torchvision.ops
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankless.geometry.nms import best_first, nms


def crowd(count: int, seed: int, levels: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes that overlap a lot, scores (of few levels, so that many are equal), and labels."""
    rng = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, dtype=torch.float64, generator=rng) * 40
    boxes = torch.cat((corner, corner + torch.rand(count, 2, generator=rng, dtype=torch.float64) * 60), 1)
    scores = torch.rand(count, generator=rng).double()
    if levels:
        scores = (scores * levels).floor() / levels
    return boxes, scores, torch.randint(0, 3, (count,), generator=rng)


def likeness(a: list[float], b: list[float], kind: str) -> float:
    """As Darknet's box.c states it, in Python's floats."""
    w = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    h = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h
    overlap = w * h / union if union > 0 else 0.0
    if kind == "iou":
        return overlap
    d2 = ((a[0] + a[2] - b[0] - b[2]) / 2) ** 2 + ((a[1] + a[3] - b[1] - b[3]) / 2) ** 2
    c2 = (max(a[2], b[2]) - min(a[0], b[0])) ** 2 + (max(a[3], b[3]) - min(a[1], b[1])) ** 2
    return overlap - (d2 / c2) ** 0.6 if c2 > 0 else overlap


def literal(boxes, scores, labels, kind: str, threshold: float, class_agnostic: bool) -> list[int]:
    order = sorted(range(len(boxes)), key=lambda n: -scores[n].item())  # stable, as Python's sort is
    rows, kept = boxes.tolist(), []
    for n in order:
        rivals = [k for k in kept if class_agnostic or labels[k] == labels[n]]
        if all(likeness(rows[k], rows[n], kind) <= threshold for k in rivals):
            kept.append(n)
    return kept


@pytest.mark.parametrize("class_agnostic", [False, True])
@pytest.mark.parametrize("kind", ["iou", "diou"])
@settings(settings.get_profile("files"))
@given(st.integers(0, 60), st.integers(0, 2**32), st.sampled_from([0, 4]), st.floats(0.0, 0.9))
def test_equals_a_literal_loop(kind, class_agnostic, count, seed, levels, threshold):
    boxes, scores, labels = crowd(count, seed, levels)
    found = nms(boxes, scores, labels, kind=kind, threshold=threshold, class_agnostic=class_agnostic)
    assert found.dtype == torch.int64
    assert found.tolist() == literal(boxes, scores, labels, kind, threshold, class_agnostic)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, float("nan")]) | st.floats(0, 1, width=32), max_size=40),
    st.integers(1, 45),
)
def test_the_best_are_those_that_a_stable_sort_puts_first(values, count):
    scores = torch.tensor(values)
    expected = scores.sort(descending=True, stable=True).indices[:count]
    assert torch.equal(best_first(scores, count), expected)


@pytest.mark.parametrize("class_agnostic", [False, True])
def test_more_boxes_than_are_compared_at_once_equal_a_literal_loop(class_agnostic):
    given = crowd(300, 3)
    found = nms(*given, kind="diou", threshold=0.3, class_agnostic=class_agnostic)
    assert found.tolist() == literal(*given, "diou", 0.3, class_agnostic)


@pytest.mark.parametrize("kind", ["iou", "diou"])
def test_points_and_nothing(kind):
    points = torch.tensor([[5.0, 5.0, 5.0, 5.0]]).expand(3, 4)
    labels = torch.zeros(3, dtype=torch.int64)
    assert nms(points, torch.tensor([0.1, 0.3, 0.2]), labels, kind=kind, threshold=0.5).tolist() == [1, 2, 0]
    nothing = nms(points[:0], torch.zeros(0), labels[:0], kind=kind, threshold=0.5)
    assert nothing.shape == (0,) and nothing.dtype == torch.int64


def test_boxes_outside_the_image_remove_none_of_another_class():
    """One lies as far beyond the upper left corner as the other from it on the other side, plus a pixel."""
    boxes = torch.tensor([[500.0, 500, 1000, 1000], [-501.0, -501, -1, -1]])
    scores, labels = torch.tensor([0.9, 0.8]), torch.tensor([0, 1])
    assert nms(boxes, scores, labels, kind="iou", threshold=0.5).tolist() == [0, 1]


def test_a_huge_box_does_not_blur_the_small_ones():
    """The heads may say boxes a million pixels wide, at which float32 has steps of 16 pixels here."""
    boxes = torch.tensor([[0.0, 0, 20, 20], [2.0, 2, 22, 22], [-1e6, -1e6, 1e6, 1e6]])
    scores, labels = torch.tensor([0.9, 0.8, 0.7]), torch.tensor([79, 79, 0])
    assert nms(boxes, scores, labels, kind="iou", threshold=0.7).tolist() == [0, 1, 2]  # 0.68
    assert nms(boxes, scores, labels, kind="iou", threshold=0.6).tolist() == [0, 2]


def test_many_boxes_equal_torchvision():
    boxes, scores, labels = crowd(3000, 8)
    found = nms(boxes, scores, labels, kind="iou", threshold=0.6)
    assert torch.equal(found, torchvision.ops.batched_nms(boxes, scores, labels, 0.6))
