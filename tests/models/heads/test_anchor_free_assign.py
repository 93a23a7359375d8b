"""Which point answers for which truth: a literal reference, and cases worked out by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankless.models.heads.anchor_free import assign as free_assign
from rankless.models.heads.anchor_free.assign import Predicted, assign, highest
from rankless.models.heads.anchor_free.codec import AnchorFreeHead, decode, points
from rankless.models.heads.truths import Truths
from support.reference_for_anchor_free import CLASSES, RULES, STRIDES, case, make_batch, make_raw


def predicted_of(raw, bins=0):
    heads = [AnchorFreeHead(stride, bins) for stride in STRIDES]
    decoded = [decode(one, head) for one, head in zip(raw, heads, strict=True)]
    at = [points(one.shape[-2:], head, one).flatten(0, 1) for one, head in zip(raw, heads, strict=True)]
    return Predicted(
        boxes=torch.cat([boxes.flatten(1, 2) for boxes, _, _ in decoded], 1),
        logits=torch.cat([logits.flatten(1, 2) for _, _, logits in decoded], 1),
        points=torch.cat(at),
        strides=torch.cat([p.new_full((len(p),), head.stride) for p, head in zip(at, heads, strict=True)]),
        radius=0.5 if bins else 1.0,
    )


def truths_of(batch):
    return Truths.of(batch.boxes, batch.labels, batch.valid, torch.float64)


@pytest.mark.parametrize("rule", RULES)
@given(x=st.floats(0, 96), y=st.floats(0, 64), w=st.floats(0, 12), h=st.floats(0, 12), seed=st.integers(0, 5))
def test_a_truth_that_is_alone_always_gets_a_point_that_counts(rule, x, y, w, h, seed):
    box = [max(x - w / 2, 0), max(y - h / 2, 0), min(x + w / 2, 96), min(y + h / 2, 64)]
    targets = assign(rule, predicted_of(make_raw(0, 1, seed)), truths_of(make_batch([[(box, 1)]])))
    assert targets.positive.any()
    assert targets.weight.max() == 1
    near = targets.positive[0].nonzero().flatten()
    assert (targets.labels[0, near] == 1).all()


def flat_predictions(boxes, logits=None):
    """One row of points 8 pixels apart that say these boxes."""
    boxes = torch.tensor([boxes], dtype=torch.float64)
    count = boxes.shape[1]
    at = torch.tensor([[8 * i + 4.0, 4.0] for i in range(count)], dtype=torch.float64)
    logits = torch.zeros(1, count, CLASSES, dtype=torch.float64) if logits is None else logits
    return Predicted(boxes, logits, at, at.new_full((count,), 8))


def test_task_aligned_takes_the_ten_best_and_of_equals_the_first():
    truth = [0.0, 0.0, 96.0, 8.0]
    predicted = flat_predictions([truth] * 12)
    targets = assign("task-aligned", predicted, truths_of(make_batch([[(truth, 0)]])))
    assert targets.positive[0].tolist() == [True] * 10 + [False] * 2
    assert targets.quality[0, :10].tolist() == [1.0] * 10


def test_among_equal_objects_of_several_classes_the_lowest_class_is_matched():
    box = [0.0, 0.0, 16.0, 8.0]
    predicted = flat_predictions([box, box])
    for labels in ((2, 1), (1, 2)):
        batch = make_batch([[(box, label) for label in labels]])
        targets = assign("task-aligned", predicted, truths_of(batch))
        assert targets.labels[0].tolist() == [1, 1]


@given(st.data())
def test_highest_is_the_beginning_of_a_stable_sort(data):
    rows = data.draw(
        st.lists(
            st.lists(st.sampled_from([-float("inf"), 0.0, 1.0, 2.5]), min_size=6, max_size=6),
            min_size=1,
            max_size=4,
        )
    )
    rooms = [data.draw(st.integers(1, 4)) for _ in rows]
    marks = highest(torch.tensor([rows]), torch.tensor([rooms]), 4)[0].tolist()
    for row, room, mark in zip(rows, rooms, marks, strict=True):
        first = sorted(range(6), key=lambda p: (-row[p], p))[:room]
        assert [p for p in range(6) if mark[p]] == sorted(first)


@pytest.mark.parametrize("rule", RULES)
def test_images_may_be_taken_one_by_one(rule, monkeypatch):
    batch = case("hard")
    predicted = predicted_of(make_raw(0, 2, 1))
    whole = assign(rule, predicted, truths_of(batch))
    monkeypatch.setattr(free_assign, "_PAIRS_AT_ONCE", 1)
    single = assign(rule, predicted, truths_of(batch))
    for name in ("positive", "boxes", "labels", "quality", "weight"):
        assert torch.equal(getattr(whole, name), getattr(single, name))
